// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/renameio/v2"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights/safetensors"
)

// MaxIndexFile is the limit of a saved [Index] in bytes.
const MaxIndexFile = 64 << 20

// Index knows model directories by checkpoint hash. It reads the headers of a
// directory once, and again only when a name, size, time or inode there has
// changed. It is safe for concurrent use; one look-up runs at a time.
type Index struct {
	mu       sync.Mutex
	roots    []string
	known    map[string]*record // by directory
	problems []error
}

// record is what is known of one directory.
type record struct {
	Files   map[string]stamp.Stamp `json:"files"`
	MD5     string                 `json:"md5,omitempty"`
	SHA256  string                 `json:"sha256,omitempty"`
	Problem string                 `json:"problem,omitempty"` // why there is no hash
	Added   bool                   `json:"added,omitempty"`   // lies below no root, maybe
	problem error                  // Problem with its type, where it was met in this process
}

// NewIndex makes an index of the model directories below roots, which may be such
// directories themselves, folders of them to a depth of three, or Hugging Face
// caches. It reads nothing yet.
func NewIndex(roots []string) *Index {
	x := &Index{known: make(map[string]*record)}
	x.SetRoots(roots)
	return x
}

// SetRoots replaces the roots.
func (x *Index) SetRoots(roots []string) {
	clean := make([]string, len(roots))
	for i, r := range roots {
		clean[i] = absolute(r)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.roots = clean
}

// absolute is the path from the root, or at least a clean one where the working
// directory is gone.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}

// Add makes a directory known that may lie below no root. It is forgotten when it
// is gone.
func (x *Index) Add(dir string) {
	dir = absolute(dir)
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.known[dir]
	if r == nil {
		r = new(record)
		x.known[dir] = r
	}
	r.Added = true
}

// Lookup gives the directories of a checkpoint hash, MD5 or SHA-256 in hex, sorted.
// It looks at every root, since several directories may share a hash: whoever gets
// more than one must not pick one by chance. None is no error; [Index.Problems]
// may say why.
func (x *Index) Lookup(hash string) ([]string, error) {
	if b, err := hex.DecodeString(hash); err != nil || len(b) != md5.Size && len(b) != sha256.Size {
		return nil, fmt.Errorf("look up checkpoint: %q is no hash of 32 or 64 hexadecimal digits", hash)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refresh()
	var dirs []string
	for dir, r := range x.known {
		if r.MD5 == hash || r.SHA256 == hash {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}

// Problems are the roots and directories that the last Lookup could not read.
func (x *Index) Problems() []error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.problems)
}

// refresh brings known up to date. Precondition: mu is held.
func (x *Index) refresh() {
	dirs, problems := modelDirs(x.roots)
	for dir, r := range x.known {
		if r.Added {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)

	records := make([]*record, len(dirs))
	slots := make(chan struct{}, headerReaders)
	var group sync.WaitGroup
	for i, dir := range dirs {
		old := x.known[dir]
		group.Go(func() {
			slots <- struct{}{}
			records[i] = update(dir, old)
			<-slots
		})
	}
	group.Wait()

	x.known = make(map[string]*record, len(dirs))
	for i, dir := range dirs {
		r := records[i]
		if r == nil {
			continue
		}
		x.known[dir] = r
		if r.problem != nil {
			problems = append(problems, r.problem)
		} else if r.Problem != "" {
			problems = append(problems, errors.New(r.Problem))
		}
	}
	x.problems = problems
}

// update gives the record of a directory as it is now: old itself where nothing
// has changed, nil where the directory is gone.
func update(dir string, old *record) *record {
	added := old != nil && old.Added
	have, err := survey(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && old != nil && old.Files != nil && maps.Equal(old.Files, have) {
		return old
	}
	r := &record{Added: added}
	if err == nil {
		err = r.read(dir)
	}
	if err != nil {
		r.Problem, r.problem = err.Error(), err
	}
	return r
}

// read takes the hashes of a directory. Files stays nil where the same files may
// give another answer the next time.
func (r *record) read(dir string) error {
	have, err := settle(dir)
	if err != nil {
		return err
	}
	pick, err := choose(dir, have)
	if err == nil {
		err = r.hash(dir, pick.hashed, have)
	}
	var unusable *Unusable
	if err == nil || errors.As(err, &unusable) {
		r.Files = have
	}
	return err
}

func (r *record) hash(dir string, names []string, have map[string]stamp.Stamp) error {
	short, long := md5.New(), sha256.New()
	for _, name := range names {
		err := reading(filepath.Join(dir, name), have[name], func(f *os.File) error {
			raw, err := safetensors.ReadRaw(f, have[name].Size)
			if err != nil {
				return err
			}
			hashHeader(short, name, raw)
			hashHeader(long, name, raw)
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.MD5, r.SHA256 = hex.EncodeToString(short.Sum(nil)), hex.EncodeToString(long.Sum(nil))
	return nil
}

// saved is the form of an index in a file.
type saved struct {
	Version int                `json:"version"`
	Dirs    map[string]*record `json:"dirs"`
}

const savedVersion = 2

// Save writes what is known to a file, whole or not at all.
func (x *Index) Save(path string) error {
	x.mu.Lock()
	b, err := json.Marshal(saved{Version: savedVersion, Dirs: x.known})
	x.mu.Unlock()
	if err != nil {
		return fmt.Errorf("save index: %w", err)
	}
	if err := renameio.WriteFile(path, b, 0o600, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("save index: %w", err)
	}
	return nil
}

// Load takes over what Save wrote. Without the file, or with one that is damaged,
// the index starts anew; only the second is an error, for the log.
func (x *Index) Load(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load index: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	b, err := io.ReadAll(io.LimitReader(f, MaxIndexFile+1))
	if err != nil {
		return fmt.Errorf("load index: %w", err)
	}
	known, err := decodeIndex(b)
	if err != nil {
		return fmt.Errorf("load index %q: %w", path, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.known = known
	return nil
}

func decodeIndex(b []byte) (map[string]*record, error) {
	if len(b) > MaxIndexFile {
		return nil, fmt.Errorf("it is over the limit of %d bytes", MaxIndexFile)
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	if s.Version != savedVersion {
		return nil, fmt.Errorf("it has version %d, not %d", s.Version, savedVersion)
	}
	for dir, r := range s.Dirs {
		if r == nil || !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return nil, fmt.Errorf("directory %q: no record, or no absolute path", dir)
		}
		if !isHash(r.MD5, md5.Size) || !isHash(r.SHA256, sha256.Size) || (r.MD5 == "") != (r.SHA256 == "") {
			return nil, fmt.Errorf("directory %q: hashes %q and %q", dir, r.MD5, r.SHA256)
		}
		if r.Files != nil && r.MD5 == "" && r.Problem == "" {
			return nil, fmt.Errorf("directory %q: neither a hash nor a reason why", dir)
		}
	}
	if s.Dirs == nil {
		s.Dirs = make(map[string]*record)
	}
	return s.Dirs, nil
}

// isHash reports whether s is empty or size bytes in hex.
func isHash(s string, size int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && (s == "" || len(b) == size)
}
