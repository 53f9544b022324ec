// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
)

// gpuWorkers is the number of workers that fills a GPU fastest: on an H200 ten threads
// that copy from the page cache keep the bus full, and each further one costs the time to
// pin its staging buffer. A load that casts, or that picks its rows from between those of
// other ranks, is limited by the processors, and takes as many workers as a load into
// host memory.
const gpuWorkers = 10

// minWorkers keeps a disk busy on machines with few processors.
const minWorkers = 4

// laborious reports whether a plan has copies that need more work than reading a file.
func laborious(p *layout.Plan) bool {
	return slices.ContainsFunc(p.Copies, func(c layout.Copy) bool {
		return c.From != c.To || c.Rows > 1 && c.SrcStride != c.RowBytes
	})
}

// job makes the job of a child from a configuration and a plan.
func (l *loads) job(c config.Config, device string, plan *layout.Plan) loader.Job {
	job := loader.Job{Device: device, Plan: plan, Workers: c.Workers, BlockBytes: int(c.Block), Direct: c.Direct}
	if l.o.GPU && job.Workers == 0 && !laborious(plan) {
		job.Workers = min(gpuWorkers, max(runtime.GOMAXPROCS(0), minWorkers))
	}
	return job
}

// wanted lists the files of a directory whose digests a job computes: those that a load
// depends on, without weight files that the plan doesn't read. A nil plan reads all.
// Places has the index in files of each.
func wanted(dir string, files []manifest.File, plan *layout.Plan) (list []layout.File, places []int) {
	read := make(map[string]bool)
	if plan != nil {
		for _, f := range plan.Files {
			read[f.Path] = true
		}
	}
	for i, f := range files {
		path := filepath.Join(dir, f.Name)
		if !f.Used || f.Stamp == (stamp.Stamp{}) || plan != nil && strings.HasSuffix(f.Name, ".safetensors") && !read[path] {
			continue
		}
		list = append(list, layout.File{Path: path, Stamp: f.Stamp})
		places = append(places, i)
	}
	return list, places
}

// recordOf gives the record of an entry's directory.
func recordOf(e manifest.Entry) weights.Record {
	r := weights.Record{Path: e.Dir, Indexed: e.Indexed}
	for _, f := range e.Files {
		r.Files = append(r.Files, weights.Stamp{Name: f.Name, Stamp: f.Stamp, Used: f.Used})
	}
	return r
}

// manifestFiles lists the files of a directory as they were when it was read.
func manifestFiles(r weights.Record) []manifest.File {
	var files []manifest.File
	for _, f := range r.Files {
		files = append(files, manifest.File{Name: f.Name, Stamp: f.Stamp, Used: f.Used})
	}
	return files
}

// loadFiles are the descriptors that a load needs at once: the job, the loader's
// socket and pipes, a pidfd, the segments, the table, and their duplicates.
const loadFiles = 32

// roomForFiles is an error if a load would exceed the limit of open files.
func roomForFiles() error {
	var limit unix.Rlimit
	open, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	if need := len(open) + loadFiles; err == nil && uint64(need) > limit.Cur {
		return fmt.Errorf("make room: %d open files are needed and the limit is %d: raise LimitNOFILE= in a drop-in (systemctl --user edit wcache@.service), or ulimit -n", need, limit.Cur)
	}
	return nil // also if /proc can't be read: the load may still work
}
