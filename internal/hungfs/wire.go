// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hungfs

// The protocol as the kernel's include/uapi/linux/fuse.h has it at version 7.31,
// which every newer kernel speaks too. Numbers are in the machine's byte order.

// What the kernel asks for.
const (
	opLookup      = 1
	opForget      = 2 // has no reply
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opRelease     = 18
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opInterrupt   = 36 // has no reply here: what can be interrupted has not been read yet
	opDestroy     = 38
	opBatchForget = 42 // has no reply
)

const (
	version  = 7
	revision = 31
	rootNode = 1
	// minRequest is the least buffer with which the kernel lets a server read
	// (FUSE_MIN_READ_BUFFER); no request to a read-only file system is longer.
	minRequest = 8192
	maxWrite   = 4096 // the least that it accepts; nothing is ever written
)

// inHeader begins each request.
type inHeader struct {
	Len      uint32
	Opcode   uint32
	Unique   uint64 // to be repeated in the reply
	Node     uint64
	UID, GID uint32
	PID      uint32
	Extended uint16
	_        uint16
}

const inHeaderSize = 40

// outHeader begins each reply.
type outHeader struct {
	Len    uint32
	Error  int32 // an errno, negated
	Unique uint64
}

const outHeaderSize = 16

type initIn struct{ Major, Minor uint32 } // more follows

type initOut struct {
	Major, Minor        uint32
	MaxReadahead        uint32
	Flags               uint32
	MaxBackground       uint16
	CongestionThreshold uint16
	MaxWrite            uint32
	TimeGranularity     uint32 // in ns
	_                   [36]byte
}

type attr struct {
	Inode, Size, Blocks             uint64
	Atime, Mtime, Ctime             uint64
	AtimeNsec, MtimeNsec, CtimeNsec uint32
	Mode, Links, UID, GID, Rdev     uint32
	BlockSize                       uint32
	_                               uint32
}

// attrOut and entryOut begin with times for which the kernel may keep them: zero.
type attrOut struct {
	_    [16]byte
	Attr attr
}

type entryOut struct {
	Node uint64
	_    [32]byte
	Attr attr
}

type openOut struct {
	Handle uint64
	Flags  uint32
	_      uint32
}

// readIn is that of READ and of READDIR.
type readIn struct {
	Handle uint64
	Offset uint64
	Size   uint32
	_      [20]byte
}

// direntHeader begins each entry of a directory; the name follows, and zeros up to
// a multiple of eight.
type direntHeader struct {
	Inode  uint64
	Next   uint64 // the offset at which to go on
	Length uint32 // of the name
	Type   uint32 // S_IFMT of the mode, moved right by 12
}

type statfsOut struct {
	Blocks, Free, Available, Files, FilesFree uint64
	BlockSize, NameLength, FragmentSize       uint32
	_                                         [28]byte
}
