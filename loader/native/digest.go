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
	File   int    `json:"file"`   // index into the files that were asked for
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	// Hub is what a Hugging Face cache says that it is: there a file of weights is a
	// link to blobs/SHA256. "": the file isn't one of such a cache, or is a small one,
	// which has another name.
	Hub string `json:"hub,omitempty"`
}

// Damaged is the error for a file that is not what its name in a Hugging Face cache
// says: its download was cut short, or the disk has lost something.
type Damaged struct {
	Path        string
	SHA256, Hub string // that it has, and that its name says
}

func (e *Damaged) Error() string {
	//diag files FILE DIGEST DIGEST
	// The download was cut short, a program wrote to the file, or the disk lost part of it. Remove
	// the blob that the file is a link to, as the Hugging Face library keeps what is there, and
	// fetch the model again. With `verify = "load"` the file is not loaded; otherwise wcache finds
	// it after the load, and serves the weights as the engine itself would load them.
	return fmt.Sprintf("check %q: its sha256 is %s and its name in the Hugging Face cache says %s: it is damaged or not complete", e.Path, e.SHA256, e.Hub)
}

// Hashing says of which files sha256 is wanted.
type Hashing struct {
	Files []layout.File
	// Gently is for one who is in no hurry: a file at a time, past the page cache what
	// isn't in it. Else there is a goroutine a processor, and all comes by the cache.
	Gently bool
	// Done is called for each file when it has been read, and was the same before and
	// after. An error of it ends the hashing. It may be called by several goroutines
	// at once.
	Done func(Digest) error
	// Progress is called likewise, with the bytes that were just read. It may be nil.
	Progress func(n int64)
}

const (
	// hashBlock is what is read and hashed at once where it comes by the page cache: it
	// fits a core's second level cache.
	hashBlock = 256 << 10
	// gentleBlock is large enough to be read past the page cache.
	gentleBlock = 2 * directBytes
)

// Hash computes the digests of files, the largest first: the last one to end is then
// the earliest. Errors are as those of [Fill], or Done's.
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

// hash does one file.
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
	if err := s.check(); err != nil { // half of it may be another file's
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
		// What has to come by the cache all the same is to go first, since Linux 6.3.
		advice = unix.FADV_NOREUSE
	}
	_ = unix.Fadvise(s.fd.Int(), 0, 0, advice) // it is advice
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

// blob is the path of a file of a Hugging Face cache that is named by its sha256.
// Files that git itself holds are named by a SHA-1 of something else, 40 digits.
var blob = regexp.MustCompile(`/blobs/([0-9a-f]{64})$`)

// hub is the sha256 that a file's name in a Hugging Face cache says, "" for one of
// elsewhere. The kernel knows where all links have led.
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
