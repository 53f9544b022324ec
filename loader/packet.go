// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

const (
	maxPacket = 16 << 10  // bytes of JSON in one packet
	maxJob    = 512 << 20 // bytes of an encoded job: a plan of the largest table
	maxText   = 2 << 10   // bytes of an error's message, of which JSON can make six times as many
	maxPieces = 4 << 10   // segments of a job
	maxFiles  = 1 << 12   // digests of a job
)

// Kinds of packets. The parent sends the job first and, for a job that verifies, the pieces
// of its segment. The child sends progress and digests, then either one packet per piece of
// the segment and done, or the verdict; or, at any time, error.
const (
	saysJob      = "job"      // with the descriptor of the job
	saysProgress = "progress" // Allocated, Done, Total, Waiting
	saysSegment  = "segment"  // Bytes, with the descriptor
	saysDone     = "done"     // with the descriptor of the table
	saysDigest   = "digest"   // Digest
	saysVerdict  = "verdict"  // the end of a job that loads nothing: Difference, or none
	saysError    = "error"    // Error
)

type packet struct {
	Says      string `json:"says"`
	Allocated int64  `json:"allocated,omitempty"`
	Done      int64  `json:"done,omitempty"`
	Total     int64  `json:"total,omitempty"`
	Bytes     int64  `json:"bytes,omitempty"`
	Waiting   string `json:"waiting,omitempty"`
	Error     *Error `json:"error,omitempty"`

	Digest     *Digest     `json:"digest,omitempty"`
	Difference *Difference `json:"difference,omitempty"`
}

// takesFD reports whether a packet comes with a descriptor.
func (p *packet) takesFD() bool {
	return p.Says == saysJob || p.Says == saysSegment || p.Says == saysDone
}

// pipe is one end of the socketpair. One goroutine may send while another
// receives.
type pipe struct{ conn *net.UnixConn }

// newPipe takes ownership of one end of a socketpair.
func newPipe(f *os.File) (*pipe, error) {
	defer f.Close() // FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open loader socket: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("open loader socket: it is a %T", c)
	}
	return &pipe{conn}, nil
}

func (p *pipe) Close() error { return p.conn.Close() }

// send sends a packet, and a descriptor with it unless that is nil. The caller keeps the
// descriptor.
func (p *pipe) send(m *packet, f *fd.FD) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("send %s packet: %w", m.Says, err)
	}
	var rights []byte
	if f != nil {
		rights = unix.UnixRights(f.Int())
	}
	if _, _, err := p.conn.WriteMsgUnix(b, rights, nil); err != nil {
		return fmt.Errorf("send %s packet: %w", m.Says, err)
	}
	return nil
}

// errHangUp is the error of receive when the other end is closed.
var errHangUp = errors.New("the other side hung up")

// receive returns the next packet and its descriptor, which the caller owns; nil for kinds
// without one. It closes the descriptors of an invalid packet.
func (p *pipe) receive() (*packet, *fd.FD, error) {
	b := make([]byte, maxPacket+1)
	oob := make([]byte, unix.CmsgSpace(4*4))             // room to notice more than one
	n, oobn, flags, _, err := p.conn.ReadMsgUnix(b, oob) // which sets MSG_CMSG_CLOEXEC
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || n == 0 && err == nil {
		return nil, nil, errHangUp
	}
	if err != nil {
		return nil, nil, fmt.Errorf("receive packet: %w", err)
	}
	fds, err := rights(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	m, err := parse(b[:n], flags, len(fds))
	if err != nil {
		for _, f := range fds {
			_ = f.Close()
		}
		return nil, nil, err
	}
	if len(fds) == 0 {
		return m, nil, nil
	}
	return m, fds[0], nil
}

// parse decodes a packet that came with the given number of descriptors.
func parse(b []byte, flags, fds int) (*packet, error) {
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(b) > maxPacket {
		return nil, fmt.Errorf("receive packet: it is over %d bytes or has too many descriptors", maxPacket)
	}
	m := new(packet)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("receive packet: %w", err)
	}
	want := 0
	if m.takesFD() {
		want = 1
	}
	if fds != want {
		return nil, fmt.Errorf("receive packet: %q with %d descriptors", m.Says, fds)
	}
	return m, nil
}

// rights takes ownership of all descriptors in a control message.
func rights(oob []byte) ([]*fd.FD, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receive descriptors: %w", err)
	}
	var list []*fd.FD
	for i := range messages {
		numbers, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // another kind of message, without descriptors
		}
		for _, n := range numbers {
			if f, err := fd.New(n); err == nil {
				list = append(list, f)
			}
		}
	}
	return list, nil
}
