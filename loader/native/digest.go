// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/layout"
)

// Digest is the sha256 of a file.
type Digest struct {
	File   int    `json:"file"`   // index into the files of the request
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	// Hub is the sha256 in the file's name in a Hugging Face cache, where a file of weights
	// is a link to blobs/SHA256. "": the file isn't in such a cache, or is a small one, which
	// has another kind of name.
	Hub string `json:"hub,omitempty"`
}

// Damaged is the error for a file whose sha256 isn't the one in its name in a Hugging Face
// cache: its download was cut short, or the disk has lost data.
type Damaged struct {
	Path        string
	SHA256, Hub string // the file's sha256, and the one in its name
}

func (e *Damaged) Error() string {
	//diag files FILE DIGEST DIGEST
	// The download was cut short, a program wrote to the file, or the disk lost part of it. Remove
	// the blob that the file is a link to, as the Hugging Face library keeps what is there, and
	// fetch the model again. With `verify = "load"` the file is not loaded; otherwise wcache finds
	// it after the load, and serves the weights as the engine itself would load them.
	return fmt.Sprintf("check %q: its sha256 is %s and its name in the Hugging Face cache says %s: it is damaged or not complete", e.Path, e.SHA256, e.Hub)
}

// Hashing says which files to hash, and how.
type Hashing struct {
	Files []layout.File
	// Gently hashes one file at a time, and reads blocks that aren't in the page cache past
	// it. Otherwise one goroutine per processor hashes, all through the page cache.
	Gently bool
	// Done is called for each file that was read completely and didn't change meanwhile. Its
	// error ends the hashing. Several goroutines may call it at once.
	Done func(Digest) error
	// Progress is called in the same way, with the number of bytes that were just read. It
	// may be nil.
	Progress func(n int64)
}

const (
	// hashBlock is how many bytes are read and hashed at once through the page cache. It
	// fits into a core's second level cache.
	hashBlock = 256 << 10
	// gentleBlock is how many bytes are read at once past the page cache.
	gentleBlock = 2 * directBytes
)

// Hash computes the digests of files, the largest first, which ends soonest with several
// goroutines. Errors are as with [Fill], or Done's.
func Hash(ctx context.Context, h Hashing) error {
	if h.Progress == nil {
		h.Progress = func(int64) {}
	}
	order := make([]int, len(h.Files))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(h.Files[b].Stamp.Size, h.Files[a].Stamp.Size)
	})
	workers := min(runtime.GOMAXPROCS(0), len(order))
	if h.Gently {
		workers = min(1, len(order))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			w := &worker{ctx: ctx, progress: h.Progress}
			defer w.aligned.free()
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(order) {
					return
				}
				if err := w.hash(&h, order[i]); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// hash computes the digest of one file.
func (w *worker) hash(h *Hashing, file int) error {
	s, err := openSource(h.Files[file])
	if err != nil {
		return err
	}
	defer closeSources([]*source{s})
	d := Digest{File: file}
	if d.Hub, err = s.hub(); err != nil {
		return err
	}
	if h.Gently {
		if err := s.openDirect(); err != nil {
			return err
		}
	}
	if d.SHA256, err = w.sum(s, h.Gently); err != nil {
		return err
	}
	if err := s.check(); err != nil { // a write during the read would mix contents
		return err
	}
	return h.Done(d)
}

// sum reads all of a file.
func (w *worker) sum(s *source, gently bool) (string, error) {
	b, read := make([]byte, hashBlock), s.read
	advice := unix.FADV_SEQUENTIAL
	if gently {
		b = make([]byte, gentleBlock)
		read = func(b []byte, off int64) error { return w.readBlock(s, b, off) }
		// Since Linux 6.3 the kernel drops first what this has to read through the cache.
		advice = unix.FADV_NOREUSE
	}
	_ = unix.Fadvise(s.fd.Int(), 0, 0, advice) // only advice
	sum := sha256.New()
	for off := int64(0); off < s.file.Stamp.Size; {
		if err := w.ctx.Err(); err != nil {
			return "", context.Cause(w.ctx)
		}
		b = b[:min(int64(cap(b)), s.file.Stamp.Size-off)]
		if err := read(b, off); err != nil {
			return "", err
		}
		sum.Write(b) // a hash.Hash returns no errors
		off += int64(len(b))
		w.progress(int64(len(b)))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// blob matches the path of a file in a Hugging Face cache that is named by its sha256. Files
// that git itself stores are named by a git object id of 40 digits, which isn't their digest.
var blob = regexp.MustCompile(`/blobs/([0-9a-f]{64})$`)

// hub is the sha256 in the file's name in a Hugging Face cache, "" for other files. The link
// in /proc/self/fd gives the path after all symbolic links.
func (s *source) hub() (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", s.fd.Int()))
	if err != nil {
		return "", &Unreadable{Path: s.file.Path, Offset: -1, Err: err}
	}
	if m := blob.FindStringSubmatch(path); m != nil {
		return m[1], nil
	}
	return "", nil
}
