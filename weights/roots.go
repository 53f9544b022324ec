// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wcache/wcache/stamp"
)

const (
	// rootDepth is how many folders below a root a model directory may lie: enough
	// for owner/name, and for models--owner--name/snapshots/commit.
	rootDepth = 3
	// maxRootDirs is how many directories are looked at below one root. A root such
	// as a home directory must not keep the index busy for ever.
	maxRootDirs = 10_000
)

// modelDirs finds the directories below roots that hold safetensors files, not
// looking for more inside them. What can't be read is passed over with an error.
// Links are followed, and a directory that several paths lead to comes once.
func modelDirs(roots []string) (dirs []string, problems []error) {
	w := walk{seen: make(map[identity]bool)}
	for _, root := range roots {
		w.root, w.left = root, maxRootDirs
		w.visit(root, rootDepth)
		if w.left < 0 {
			w.problems = append(w.problems, fmt.Errorf("search root %q: it has over %d directories, the rest is not looked at; name the model directories instead", root, maxRootDirs))
		}
	}
	return w.dirs, w.problems
}

// identity tells a directory apart whatever its path.
type identity struct{ device, inode uint64 }

type walk struct {
	root     string
	left     int // directories that may still be looked at
	seen     map[identity]bool
	dirs     []string
	problems []error
}

func (w *walk) visit(dir string, depth int) {
	if w.left--; w.left < 0 {
		return
	}
	info, err := stamp.Of(dir)
	if err != nil {
		w.problems = append(w.problems, fmt.Errorf("search root %q: %w", w.root, err))
		return
	}
	id := identity{info.Device, info.Inode}
	if w.seen[id] {
		return
	}
	w.seen[id] = true
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.problems = append(w.problems, fmt.Errorf("search root %q: %w", w.root, err))
		return
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return IsWeights(e.Name()) }) {
		w.dirs = append(w.dirs, dir)
		return
	}
	if depth == 0 {
		return
	}
	var links []string // come last, so that a directory goes by its own name
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case passedOver(e.Name()):
		case e.IsDir():
			w.visit(path, depth-1)
		case e.Type()&fs.ModeSymlink != 0:
			links = append(links, path)
		}
	}
	for _, path := range links {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			w.visit(path, depth-1)
		}
	}
}

// passedOver is for hidden folders and for what else Hugging Face caches hold.
func passedOver(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "datasets--") || strings.HasPrefix(name, "spaces--")
}

// Dirs lists the model directories below roots, which are as an [Index] takes
// them. What can't be read is passed over.
func Dirs(roots []string) []string {
	dirs, _ := modelDirs(roots) // the index tells problems
	return dirs
}

// FileBytes is how much the files of a model directory hold that have weights in
// them by their names: about what the model takes as a whole. Consolidated files
// hold the same once more, and count only where there are no others.
func FileBytes(dir string) int64 {
	entries, _ := os.ReadDir(dir) // without any it is 0
	var sum, consolidated int64
	for _, e := range entries {
		if !IsWeights(e.Name()) {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, e.Name())) // a cache has links
		switch {
		case err != nil:
		case IsConsolidated(e.Name()):
			consolidated += info.Size()
		default:
			sum += info.Size()
		}
	}
	if sum == 0 {
		return consolidated
	}
	return sum
}
