// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
)

// flipped is a copy of host memory with one other byte.
func flipped(t *testing.T, s device.Segment, at int64) device.Segment {
	t.Helper()
	b := make([]byte, s.Bytes)
	if _, err := unix.Pread(s.Pieces[0].Int(), b, 0); err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	f, err := fd.Sealed("segment", b)
	if err != nil {
		t.Fatal(err)
	}
	return device.Whole(f, s.Bytes)
}

// flipFile changes a byte of a file and puts its time back. It gives the file as it is
// then.
func flipFile(t *testing.T, f layout.File, at int64) layout.File {
	t.Helper()
	file, err := os.OpenFile(f.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var b [1]byte
	then := time.Unix(0, f.Stamp.MTime)
	_, err = file.ReadAt(b[:], at)
	b[0] ^= 1
	_, err2 := file.WriteAt(b[:], at)
	if err := errors.Join(err, err2, os.Chtimes(f.Path, then, then)); err != nil {
		t.Fatal(err)
	}
	return fileOf(t, f.Path)
}

func fileOf(t *testing.T, path string) layout.File {
	t.Helper()
	st, err := stamp.Of(path)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(st.Unsettled(time.Now()))
	return layout.File{Path: path, Stamp: st.Stamp}
}

// What was loaded is what the files have, until a byte is another one, there or here.
func TestVerify(t *testing.T) {
	leaves(t, func() {
		job, data := testJob(t, 1_000_001)
		r, err := Run(t.Context(), options("work"), job, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		other := flipped(t, r.Segment, 54_321)
		defer other.Close()
		verify := func(job Job, s device.Segment, want *Difference) {
			t.Helper()
			var last Progress
			got, err := Verify(t.Context(), options("work"), job, s, func(p Progress) { last = p })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if want := (Progress{Done: 1_000_001, Total: 1_000_001}); last != want {
				t.Errorf("the last progress is %+v, want %+v", last, want)
			}
		}
		verify(job, r.Segment, nil)
		verify(job, other, &Difference{Tensor: "w", Offset: 54_321, Memory: data[54_321] ^ 1, File: data[54_321], Bytes: 1, Tensors: 1})
		plan := *job.Plan
		plan.Files = []layout.File{flipFile(t, plan.Files[0], 1_000_000)}
		job.Plan = &plan
		verify(job, r.Segment, &Difference{Tensor: "w", Offset: 1_000_000, Memory: data[1_000_000], File: data[1_000_000] ^ 1, Bytes: 1, Tensors: 1})
	})
}

// Digests come with a load and with a verification, and alone.
func TestDigests(t *testing.T) {
	leaves(t, func() {
		job, data := testJob(t, 1_000_001)
		small := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(small, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		job.Digests = []layout.File{fileOf(t, small), job.Plan.Files[0]}
		want := []Digest{{File: 0, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("{}")))}, {File: 1, SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}}
		var got []Digest
		var last Progress
		progress := func(p Progress) {
			if p.Digest != nil {
				got = append(got, *p.Digest)
				return
			}
			last = p
		}
		check := func(what string, bytes int64) {
			t.Helper()
			slices.SortFunc(got, func(a, b Digest) int { return a.File - b.File })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: digests (-want +got):\n%s", what, diff)
			}
			if last.Done != bytes || last.Total != bytes {
				t.Errorf("%s: the last progress is %+v, want %d bytes", what, last, bytes)
			}
			got = nil
		}
		r, err := Run(t.Context(), options("work"), job, progress)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if diff := cmp.Diff(want, r.Digests); diff != "" {
			t.Errorf("digests of the result (-want +got):\n%s", diff)
		}
		check("load", 1_000_001)
		other := flipped(t, r.Segment, 0)
		defer other.Close()
		if d, err := Verify(t.Context(), options("work"), job, other, progress); err != nil || d == nil {
			t.Fatalf("%+v, %v, want a difference", d, err)
		}
		check("verify", 1_000_001)
		if err := Hash(t.Context(), options("work"), job.Digests, progress); err != nil {
			t.Fatal(err)
		}
		check("hash", 1_000_003)
	})
}

// Case W3: a file that isn't what its name in a Hugging Face cache says is never loaded,
// and hashing it tells.
func TestDamaged(t *testing.T) {
	leaves(t, func() {
		job, data := testJob(t, 100_000)
		sum, name := fmt.Sprintf("%x", sha256.Sum256(data)), strings.Repeat("0a", 32)
		blob := filepath.Join(t.TempDir(), "blobs", name)
		if err := errors.Join(os.Mkdir(filepath.Dir(blob), 0o700), os.Rename(job.Plan.Files[0].Path, blob), os.Symlink(blob, job.Plan.Files[0].Path)); err != nil {
			t.Fatal(err)
		}
		file := fileOf(t, job.Plan.Files[0].Path)
		job.Plan.Files[0], job.Digests = file, []layout.File{file}
		r, err := Run(t.Context(), options("work"), job, nil)
		want := &Error{Kind: KindDamaged, Message: fmt.Sprintf(
			"check %q: its sha256 is %s and its name in the Hugging Face cache says %s: it is damaged or not complete", file.Path, sum, name)}
		var got *Error
		if !errors.As(err, &got) || r != nil {
			t.Fatalf("Run = %v, %v; want %v", r, err, want)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("error (-want +got):\n%s", diff)
		}
		var told *Digest
		if err := Hash(t.Context(), options("work"), job.Digests, func(p Progress) {
			if p.Digest != nil {
				told = p.Digest
			}
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&Digest{SHA256: sum, Hub: name}, told); diff != "" {
			t.Errorf("digest (-want +got):\n%s", diff)
		}
	})
}

// Whatever goes wrong says that it was a verification, and leaves nothing.
func TestVerifyFails(t *testing.T) {
	for _, tt := range []struct {
		name, how string
		edit      func(*testing.T, *Job)
		want      Error // with {} in the message for the file
	}{
		{"file missing", "work", func(t *testing.T, j *Job) {
			if err := os.Remove(j.Plan.Files[0].Path); err != nil {
				t.Fatal(err)
			}
		}, Error{Kind: KindFileUnreadable, Message: `open "{}": no such file or directory`}},
		{"file changed before", "work", func(t *testing.T, j *Job) { flipFile(t, j.Plan.Files[0], 5) },
			Error{Kind: KindFileChanged, Message: `check file "{}": was written, or its attributes were changed`}},
		{"file cut short in mid-verify", "truncate", nil,
			Error{Kind: KindFileChanged, Message: `check file "{}": had 500000 bytes, has 10`}},
		{"device fails", "fail", nil, Error{Kind: KindFailed, Message: "fell off the bus"}},
		{"no such device", "work", func(_ *testing.T, j *Job) { j.Device = "9" },
			Error{Kind: KindNoDevice, Message: `open device "9": there is none`}},
		{"bad plan", "work", func(_ *testing.T, j *Job) { j.Plan.Copies = nil },
			Error{Kind: KindFailed, Message: "check plan: nothing writes byte 0"}},
		{"no plan", "work", func(_ *testing.T, j *Job) { j.Plan = nil },
			Error{Kind: KindFailed, Message: "start job: the plan has no table, or there is no segment"}},
		{"a plan for more memory", "work", func(_ *testing.T, j *Job) { j.Plan.Table.Segment = 1 << 20 },
			Error{Kind: KindFailed, Message: "check plan: a segment of 1048576 bytes for memory of 503808"}},
		{"killed at the start", "die: at start", nil, Error{Kind: KindDied, Message: "the loader ended early: signal: killed"}},
		{"killed in the device", "die: view", nil, Error{Kind: KindDied, Message: "the loader ended early: signal: killed"}},
		{"killed in mid-verify", "die: in fill", nil, Error{Kind: KindDied, Message: "the loader ended early: signal: killed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leaves(t, func() {
				job, _ := testJob(t, 500_000)
				r, err := Run(t.Context(), options("work"), job, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				path := job.Plan.Files[0].Path
				if tt.edit != nil {
					tt.edit(t, &job)
				}
				opt := options(tt.how)
				opt.Env = append(opt.Env, "WCACHE_TEST_FILE="+path)
				d, err := Verify(t.Context(), opt, job, r.Segment, nil)
				var got *Error
				if !errors.As(err, &got) || d != nil {
					t.Fatalf("Verify = %+v, %v; want an *Error", d, err)
				}
				want := tt.want
				want.Message, want.Doing = strings.ReplaceAll(want.Message, "{}", path), "verify memory"
				if diff := cmp.Diff(&want, got); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
				if err.Error() != "verify memory: "+want.Message {
					t.Errorf("it says %q", err)
				}
			})
		})
	}
}

// A child that hangs in its device ends with its context.
func TestVerifyHangs(t *testing.T) {
	leaves(t, func() {
		job, _ := testJob(t, 500_000)
		r, err := Run(t.Context(), options("work"), job, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		why := errors.New("its client is gone")
		opt := options("hang: view")
		opt.Stderr = &until{text: "hanging", do: func() { cancel(why) }}
		if d, err := Verify(ctx, opt, job, r.Segment, nil); !errors.Is(err, why) || d != nil || err.Error() != "verify memory: its client is gone" {
			t.Errorf("Verify = %+v, %v; want an error for the context's reason", d, err)
		}
	})
}

// pipeFile is a file whose opening waits for a writer.
func pipeFile(t *testing.T) layout.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return fileOf(t, path)
}

// Files are hashed with what no other process wants of processors and disks, by each of the
// child's threads.
func TestHashIsIdle(t *testing.T) {
	leaves(t, func() {
		gate := pipeFile(t)
		looked := false
		var hold *os.File
		err := Hash(t.Context(), options("work"), []layout.File{gate}, func(Progress) {
			if looked {
				return
			}
			looked = true
			stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", onlyChild(t)))
			if err != nil || len(stats) == 0 {
				t.Errorf("threads of the child: %v, %v", stats, err)
			}
			for _, path := range stats {
				b, err := os.ReadFile(path)
				if err != nil {
					continue // it has ended
				}
				field := strings.Fields(string(b[strings.LastIndex(string(b), ")")+1:]))
				if policy, nice := field[41-3], field[19-3]; policy != strconv.Itoa(unix.SCHED_IDLE) || nice != "19" {
					t.Errorf("%s: policy %s, nice %s", path, policy, nice)
				}
				tid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				if class, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioWhoProcess, uintptr(tid), 0); errno == 0 && class != ioprioClassIdle {
					t.Errorf("%s: I/O class %#x", path, class)
				}
			}
			if hold, err = os.OpenFile(gate.Path, os.O_RDWR, 0); err != nil { // lets the child go on
				t.Error(err)
			}
		})
		_ = hold.Close()
		if err != nil || !looked {
			t.Errorf("looked %v, %v", looked, err)
		}
	})
}

// onlyChild is the one process that this one has started.
func onlyChild(t *testing.T) (pid int) {
	t.Helper()
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for _, f := range strings.Fields(string(b)) {
			pid, _ = strconv.Atoi(f)
		}
	}
	if pid == 0 {
		t.Fatal("there is no child")
	}
	return pid
}

// A hashing that is ended early has told what it knew.
func TestHashStops(t *testing.T) {
	leaves(t, func() {
		job, data := testJob(t, 100_000)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		why := errors.New("a load runs")
		var got []Digest
		err := Hash(ctx, options("work"), []layout.File{pipeFile(t), job.Plan.Files[0]}, func(p Progress) {
			if p.Digest != nil {
				got = append(got, *p.Digest)
				cancel(why)
			}
		})
		if !errors.Is(err, why) || err.Error() != "hash files: a load runs" {
			t.Errorf("error %v, want the context's", err)
		}
		if diff := cmp.Diff([]Digest{{File: 1, SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}}, got); diff != "" {
			t.Errorf("digests (-want +got):\n%s", diff)
		}
		file := job.Plan.Files[0]
		flipFile(t, file, 5)
		var said *Error
		if err := Hash(t.Context(), options("work"), []layout.File{file}, nil); !errors.As(err, &said) || said.Kind != KindFileChanged || said.Doing != "hash files" {
			t.Errorf("a file that has changed: %v", err)
		}
	})
}
