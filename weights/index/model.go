// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"maps"
	"slices"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/safetensors"
)

// digest identifies a header: the first bytes of its SHA-256.
type digest [16]byte

// file is what is known of one file of a model directory. It is immutable once it is
// published.
type file struct {
	stamp   stamp.Stamp // zero: a symbolic link to nothing
	settled bool        // every later write shows in the stamp
	watch   int32       // 0: the kernel doesn't report its changes
	known   bool        // its contents have been read: the digest, or the names
	digest  digest      // of the header; only for weights
	names   []string    // the names in a shard index, sorted
	err     *fault      // why the contents are not known
}

// same reports whether two files are equal, as far as stamps and contents tell.
func (f *file) same(g *file) bool {
	return f.stamp == g.stamp && f.known == g.known && f.digest == g.digest && slices.Equal(f.names, g.names) &&
		f.err.same(g.err)
}

// model is what is known of one folder with weights. It is immutable once it is
// published.
type model struct {
	files   map[string]*file // the files that can influence what vLLM loads
	cut     bool             // there are more files than the limit
	covered []string         // the names that the checkpoint hash covers, sorted; nil: not known
	md5     string           // the checkpoint hash in hex, "" if it isn't known
	sha256  string
	err     *fault // why the hash isn't known
	edition uint64
}

func (m *model) has(hash string) bool { return m != nil && (m.md5 == hash || m.sha256 == hash) }

// same reports whether nothing has changed that an answer could show.
func (m *model) same(n *model) bool {
	return m.cut == n.cut && m.md5 == n.md5 && m.sha256 == n.sha256 && slices.Equal(m.covered, n.covered) &&
		m.err.same(n.err) &&
		maps.EqualFunc(m.files, n.files, func(f, g *file) bool { return f == g || f.same(g) })
}

// hashes are the model's checkpoint hashes, nil if they aren't known.
func (m *model) hashes() []string {
	if m.md5 == "" {
		return nil
	}
	return []string{m.md5, m.sha256}
}

// spec describes a directory with a checkpoint hash: header digests by base name.
type spec map[string]digest

// spec gives the spec of the model's own hash, nil if it has no hash.
func (m *model) spec() spec {
	if m.md5 == "" {
		return nil
	}
	s := make(spec, len(m.covered))
	for _, name := range m.covered {
		s[name] = m.files[name].digest
	}
	return s
}

// excluded reports whether the directory certainly differs from a spec: it lacks a file,
// a header differs, or the hash covers other names. Files that have changed since they
// were read decide nothing; names count as they were read.
func (m *model) excluded(s spec, changed ...map[string]struct{}) bool {
	if s == nil || m.cut {
		return false
	}
	sure := func(name string) bool {
		return !slices.ContainsFunc(changed, func(c map[string]struct{}) bool { _, ok := c[name]; return ok })
	}
	for name, want := range s {
		f := m.files[name]
		if f == nil || f.known && f.digest != want && sure(name) {
			return true
		}
	}
	if m.covered == nil || !sure(weights.ShardIndexName) {
		return false
	}
	return len(m.covered) != len(s) || slices.ContainsFunc(m.covered, func(name string) bool { _, ok := s[name]; return !ok })
}

// bytes is the total size of the files with weights, judged by their names.
// Consolidated files hold the same weights again, so they count only if there are no
// others.
func (m *model) bytes() int64 {
	var sum, consolidated int64
	for name, f := range m.files {
		switch {
		case !weights.IsWeights(name):
		case weights.IsConsolidated(name):
			consolidated += f.stamp.Size
		default:
			sum += f.stamp.Size
		}
	}
	if sum == 0 {
		return consolidated
	}
	return sum
}

// sums computes both forms of the checkpoint hash, over headers that are added in the
// order of their names.
type sums struct{ short, long hash.Hash }

func newSums() sums { return sums{md5.New(), sha256.New()} }

func (s sums) hex() (short, long string) {
	return hex.EncodeToString(s.short.Sum(nil)), hex.EncodeToString(s.long.Sum(nil))
}

// header reads the header of an open file in pieces, and adds it to the sums. After an
// error the sums can't be used.
func (s sums) header(r readerAt, name string, size int64, buf []byte) (digest, error) {
	n, err := safetensors.Length(r, size)
	if err != nil {
		return digest{}, err
	}
	weights.HashPrefix(s.short, name, n)
	weights.HashPrefix(s.long, name, n)
	own := sha256.New()
	for off := int64(safetensors.Begin); n > 0; {
		b := buf[:min(n, int64(len(buf)))]
		if _, err := r.ReadAt(b, off); err != nil {
			return digest{}, err
		}
		for _, h := range []hash.Hash{s.short, s.long, own} {
			h.Write(b) // a hash.Hash returns no errors
		}
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return digest(own.Sum(nil)[:len(digest{})]), nil
}
