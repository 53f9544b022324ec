// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights/safetensors"
)

// Unfinished is the error for a directory that a download or a copy is still filling.
// It passes when that is done.
type Unfinished struct {
	Path   string // the file or directory at fault
	Reason string // what is missing, and what to do
	Err    error  // the cause where it has a type
}

//diag - the reason is explained by itself

func (e *Unfinished) Error() string { return fmt.Sprintf("read weights %q: %s", e.Path, e.Reason) }

func (e *Unfinished) Unwrap() error { return e.Err }

// abandoned is the age of the last write from which a download counts as abandoned.
// Programs write every few seconds; aria2 writes its control file every minute.
const abandoned = 10 * time.Minute

// fresh treats a time in the future like one in the past: more than abandoned away, it is wrong.
func fresh(mtime time.Time) bool { return time.Since(mtime).Abs() < abandoned }

// endings are the endings of files that a download keeps beside the file that it makes,
// or in its place until it is done: aria2, Hugging Face, Firefox and yt-dlp, Chromium,
// Safari, and scripts.
var endings = []string{".aria2", ".incomplete", ".part", ".crdownload", ".download", ".tmp"}

// rsyncRandom is the length of what rsync adds at the end of a name, before which it
// puts a dot: get_tmpname of its receiver.c.
const rsyncRandom = len(".XXXXXX")

// partOf takes the name of a file that a download keeps, and gives the name of the file
// that the download makes.
func partOf(name string) (string, bool) {
	for _, ending := range endings {
		if whole, ok := strings.CutSuffix(name, ending); ok && whole != "" {
			return whole, true
		}
	}
	if cut := len(name) - rsyncRandom; cut > 1 && name[0] == '.' && name[cut] == '.' && !strings.Contains(name[cut+1:], ".") {
		return name[1:cut], true
	}
	return "", false
}

// part is a file that a download keeps in a model directory.
type part struct {
	of, name string // base names
	fresh    bool   // it was written a short time ago
}

// partsIn lists the parts in a directory, by name.
func partsIn(dir string) ([]part, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list model directory: %w", err)
	}
	var list []part
	for _, e := range entries {
		of, ok := partOf(e.Name())
		if !ok {
			continue
		}
		p := part{of: of, name: e.Name()}
		for _, name := range []string{of, p.name} { // aria2 writes to both
			info, err := os.Stat(filepath.Join(dir, name))
			p.fresh = p.fresh || err == nil && fresh(info.ModTime())
		}
		list = append(list, p)
	}
	return list, nil
}

// refuseUnfinished refuses a directory in which a file that counts is not complete, as
// the parts beside it show. Without an index each file with weights counts, also one
// that doesn't exist yet.
func refuseUnfinished(dir string, c *choice) error {
	parts, err := partsIn(dir)
	if err != nil {
		return err
	}
	counts := append(c.names(), configName, ShardIndexName, consolidatedIndexName)
	parts = slices.DeleteFunc(parts, func(p part) bool {
		return !slices.Contains(counts, p.of) && (c.indexed || !IsWeights(p.of))
	})
	for _, p := range parts {
		if p.fresh {
			//diag files FILE
			// A program such as aria2, a browser, rsync or the Hugging Face library keeps this file
			// while it downloads. Wait until the download has ended.
			return &Unfinished{Path: filepath.Join(dir, p.of), Reason: fmt.Sprintf("is being fetched, as %q beside it shows; wait until that is gone", p.name)}
		}
	}
	if len(parts) == 0 {
		return nil
	}
	left := parts[0]
	//diag files FILE
	// A download has left this file beside the weights, and wrote neither file in the last ten
	// minutes. Continue the download, or remove the file if the weights are complete.
	return &Unusable{Path: filepath.Join(dir, left.of), Reason: fmt.Sprintf("was not fetched to its end, as %q beside it shows; fetch the rest, or remove that file if this one is whole", left.name)}
}

// missingShards is the error for shards that an index names and that don't exist.
func missingShards(index string, shards int, missing []string) error {
	//diag - the two messages below go on from it
	reason := fmt.Sprintf("unfinished snapshot: %d of %d shards are missing", len(missing), shards)
	if n := min(fetching(filepath.Dir(index), missing), len(missing)); n > 0 {
		//diag files REASON NUMBER
		// The index names files that are not there yet, and a download has written to parts of them
		// in the last ten minutes. Wait until the download has ended.
		return &Unfinished{Path: index, Reason: fmt.Sprintf("%s, %d are being downloaded; wait until they are there", reason, n), Err: fs.ErrNotExist}
	}
	const shown = 3
	list := fmt.Sprintf("%q", missing[:min(len(missing), shown)])
	if len(missing) > shown {
		list += fmt.Sprintf(" and %d more", len(missing)-shown)
	}
	//diag files REASON LIST
	// The index `model.safetensors.index.json` names files that are not in the directory, and no
	// download is writing them. The message lists the first of them; fetch the model again.
	return &Unusable{Path: index, Reason: fmt.Sprintf("%s: %s; fetch the model again", reason, list), Err: fs.ErrNotExist}
}

// noWeights is the error for a directory without any safetensors file.
func noWeights(dir string) error {
	if n := fetching(dir, nil); n > 0 {
		//diag files NUMBER
		// The directory has no weights yet, and a download has written to parts of them in the last
		// ten minutes. Wait until the download has ended.
		return &Unfinished{Path: dir, Reason: fmt.Sprintf("unfinished snapshot: no shard is there yet, %d files are being downloaded; wait until they are there", n)}
	}
	//diag files
	// The directory has no weights that wcache reads; weights in `.bin` or `.gguf` files have to be
	// converted first. Fetch or make a safetensors version of the model.
	return &Unusable{Path: dir, Reason: "holds no .safetensors files; weights in other formats have to be converted"}
}

// fetching counts the files that are being downloaded for a directory: the given names
// (or all files with weights) that have parts in it, and those that Hugging Face's
// library fetches, whose names it doesn't tell.
func fetching(dir string, missing []string) int {
	parts, _ := partsIn(dir) // the caller reports another error; this only adds detail
	var begun []string
	for _, p := range parts {
		if p.fresh && (slices.Contains(missing, p.of) || missing == nil && IsWeights(p.of)) {
			begun = append(begun, p.of)
		}
	}
	for _, folder := range hubFolders(dir) {
		entries, _ := os.ReadDir(folder)
		for _, e := range entries {
			info, err := e.Info()
			blob, incomplete := strings.CutSuffix(e.Name(), ".incomplete")
			if !incomplete || err != nil || !fresh(info.ModTime()) {
				continue
			}
			// A blob's name is a hash; if two programs fetch it, more words follow it. In
			// a folder of its own, one word comes before it.
			words := strings.Split(blob, ".")
			begun = append(begun, slices.MaxFunc(words, func(a, b string) int { return len(a) - len(b) }))
		}
	}
	slices.Sort(begun)
	return len(slices.Compact(begun))
}

// truncated is the error for a file that is shorter than its header says, or that has
// no header yet.
func truncated(path string, was stamp.Stamp, bad *safetensors.FormatError) error {
	what := bad.Error()
	if bad.Missing == 0 {
		what = reserved
	}
	if fresh(time.Unix(0, was.MTime)) {
		//diag files REASON
		// The file is shorter than its header says, and a program wrote to it in the last ten
		// minutes. Wait until it is complete.
		return &Unfinished{Path: path, Reason: what + "; it was written a moment ago, wait until it is whole", Err: bad}
	}
	//diag files REASON
	// The file is shorter than its header says, and nothing wrote to it in the last ten minutes.
	// Fetch it again.
	return &Unusable{Path: path, Reason: what + "; the file is not complete, fetch it again", Err: bad}
}

// Misread makes the error for a safetensors file that could be read and isn't valid:
// begin is the start of the file, some hundred bytes. It is an [*Unfinished] or an
// [*Unusable], or wraps an error of the file system.
func Misread(path string, begin []byte, was stamp.Stamp, err error) error {
	var bad *safetensors.FormatError
	if !errors.As(err, &bad) {
		return fmt.Errorf("read %q: %w", path, err)
	}
	what := foreign(begin)
	switch {
	case bad.Missing > 0 && what == "" || what == reserved:
		return truncated(path, was, bad)
	case what != "":
		return &Unusable{Path: path, Reason: what, Err: bad}
	}
	//diag files REASON
	// The header of the file is not valid; the first part of the message says where. Fetch the file
	// again.
	return &Unusable{Path: path, Reason: err.Error() + "; the file is damaged or not complete, fetch it again", Err: bad}
}
