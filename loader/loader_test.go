// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// The test binary is its own child, with childEnv naming what it shall do.
const childEnv = "WCACHE_TEST_CHILD"

func TestMain(m *testing.M) {
	if how := os.Getenv(childEnv); how != "" {
		os.Exit(childMain(how))
	}
	testmain.Run(m)
}

// options start a child of the given behaviour, see childMain.
func options(how string) Options {
	return Options{
		Command:  []string{"/proc/self/exe"},
		Env:      append(os.Environ(), childEnv+"="+how, "GORACE=atexit_sleep_ms=0"),
		ExitWait: testmain.Patience,
	}
}

// testJob is to load a file of the given size, in small blocks.
func testJob(t *testing.T, size int64) (Job, []byte) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	job, err := jobIn(t.TempDir(), data)
	if err != nil {
		t.Fatal(err)
	}
	return job, data
}

// jobIn is to load data, which it writes to a file in dir.
func jobIn(dir string, data []byte) (Job, error) {
	path := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return Job{}, err
	}
	st, err := stamp.Of(path)
	if err != nil {
		return Job{}, err
	}
	time.Sleep(st.Unsettled(time.Now())) // from then on a change shows
	return Job{Device: "host", Workers: 2, BlockBytes: 4096, Plan: &layout.Plan{
		Table: pageTable(st.Size),
		Files: []layout.File{{Path: path, Stamp: st.Stamp}},
		Copies: []layout.Copy{{
			Rows: 1, RowBytes: st.Size, SrcStride: st.Size, From: tensor.U8, To: tensor.U8,
		}},
	}}, nil
}

// leaves runs f and reports descriptors and processes that are there after it. Of
// those before, some may have been about to go.
func leaves(t *testing.T, f func()) {
	t.Helper()
	descriptors := func() (list []string) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			to, err := os.Readlink("/proc/self/fd/" + e.Name())
			if err != nil || strings.HasPrefix(to, "anon_inode:[event") {
				continue
			}
			list = append(list, e.Name()+" "+to)
		}
		return list
	}
	before := descriptors()
	f()
	// A child that did its job is not waited for.
	testmain.Eventually(t, "the end of all children", func() bool {
		return errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD)
	})
	testmain.Eventually(t, "no descriptors but those before", func() bool {
		return !slices.ContainsFunc(descriptors(), func(d string) bool { return !slices.Contains(before, d) })
	})
}

func TestRun(t *testing.T) {
	leaves(t, func() {
		job, data := testJob(t, 1_000_001)
		var seen []Progress
		r, err := Run(t.Context(), options("work"), job, func(p Progress) { seen = append(seen, p) })
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		page := host.Open().Granularity()
		segment := (int64(len(data)) + page - 1) / page * page
		want := *job.Plan.Table
		want.Segment = segment
		want.Aliases, want.Attrs = r.Table.Aliases, r.Table.Attrs // empty or nil
		if diff := cmp.Diff(&want, r.Table); diff != "" {
			t.Errorf("table (-want +got):\n%s", diff)
		}
		b, err := r.TableFD.ReadSealed(tensor.MaxEncoded)
		if err != nil {
			t.Fatal(err)
		}
		if stored, err := tensor.Decode(b); err != nil || !cmp.Equal(stored, r.Table) {
			t.Errorf("stored table is %v, %v; want that of the result", stored, err)
		}
		if len(r.Segment.Pieces) != 1 || r.Segment.Bytes != segment || r.Elapsed <= 0 {
			t.Fatalf("result %+v, want a segment of %d bytes", r, segment)
		}
		got := make([]byte, len(data))
		if _, err := unix.Pread(r.Segment.Pieces[0].Int(), got, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("contents differ from the file, %v", err)
		}
		last := Progress{Allocated: segment, Done: int64(len(data)), Total: int64(len(data))}
		if len(seen) < 2 || seen[len(seen)-1] != last || !slices.IsSortedFunc(seen, func(a, b Progress) int { return int(a.Done - b.Done) }) {
			t.Errorf("progress %+v, want it to rise to %+v", seen, last)
		}
		for _, f := range []int{r.TableFD.Int(), r.Segment.Pieces[0].Int()} {
			if flags, err := unix.FcntlInt(uintptr(f), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d: flags %#x, %v; want close-on-exec", f, flags, err)
			}
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	leaves(t, func() {
		job, _ := testJob(t, 100_000)
		var wg sync.WaitGroup
		for i := range 4 {
			how := "work"
			if i%2 == 1 {
				how = "die: in fill"
			}
			wg.Go(func() {
				r, err := Run(t.Context(), options(how), job, nil)
				if (err != nil) != (i%2 == 1) {
					t.Errorf("%s: %v", how, err)
				}
				if r != nil {
					r.Close()
				}
			})
		}
		wg.Wait()
	})
}

// Case S2: a child that is killed, wherever it is, is an error and nothing else.
func TestChildDies(t *testing.T) {
	for _, when := range moments {
		t.Run(when, func(t *testing.T) {
			leaves(t, func() {
				job, _ := testJob(t, 500_000)
				r, err := Run(t.Context(), options("die: "+when), job, nil)
				if when == "after handing over" {
					if err != nil {
						t.Fatalf("Run: %v, want the result that is complete", err)
					}
					r.Close()
					return
				}
				want := &Error{Kind: KindDied, Message: "the loader ended early: signal: killed"}
				var got *Error
				if !errors.As(err, &got) || r != nil {
					t.Fatalf("Run = %v, %v; want %v", r, err, want)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Case S2: a child that hangs, wherever it is, ends with its context.
func TestChildHangs(t *testing.T) {
	for _, when := range append(moments, "stopped", "deaf") {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			job, _ := testJob(t, 500_000)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			why := errors.New("the engine is gone")
			opt := options("hang: " + when)
			hung := &until{text: "hanging", do: func() {
				if when != "after handing over" { // where the end of Options.ExitWait ends it
					cancel(why)
				}
			}}
			opt.Stderr = hung
			opt.ExitWait = 500 * time.Millisecond
			r, err := Run(ctx, opt, job, nil)
			if when == "after handing over" {
				if err != nil {
					t.Fatalf("Run: %v, want the result that is complete", err)
				}
				r.Close()
				testmain.Eventually(t, "word of the child", hung.heard)
			} else if !errors.Is(err, why) || r != nil {
				t.Errorf("Run = %v, %v; want an error for the context's reason", r, err)
			}
			pid := hung.pid(t)
			testmain.Eventually(t, "the end of the child", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
		})
	}
}

// until calls do once text was written.
type until struct {
	text string
	do   func()
	once sync.Once

	mu  sync.Mutex
	buf bytes.Buffer
}

func (u *until) Write(b []byte) (int, error) {
	u.mu.Lock()
	u.buf.Write(b)
	said := strings.Contains(u.buf.String(), u.text)
	u.mu.Unlock()
	if said {
		u.once.Do(u.do)
	}
	return len(b), nil
}

func (u *until) heard() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Contains(u.buf.String(), u.text)
}

// pid is of the process that wrote "hanging".
func (u *until) pid(t *testing.T) (pid int) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, err := fmt.Sscanf(u.buf.String(), "hanging %d", &pid); err != nil {
		t.Fatalf("child said %q", u.buf.String())
	}
	return pid
}

// ended reports whether a process is gone, or waits for its parent to reap it.
func ended(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(state, []byte(") Z "))
}

// What the child starts goes with it, also when the child ends well.
func TestGrandchildIsKilled(t *testing.T) {
	for _, how := range []string{"fork and work", "fork and die"} {
		t.Run(how, func(t *testing.T) {
			job, _ := testJob(t, 1000)
			forked := &until{text: "hanging", do: func() {}}
			opt := options(how)
			opt.Stderr = forked
			r, err := Run(t.Context(), opt, job, nil)
			if (err == nil) != (how == "fork and work") {
				t.Errorf("Run: %v", err)
			}
			if r != nil {
				r.Close()
			}
			testmain.Eventually(t, "word of the grandchild", forked.heard)
			pid := forked.pid(t)
			testmain.Eventually(t, "the grandchild ends", func() bool { return ended(pid) })
		})
	}
}

// Cases W10 and D4, and what else a child can say about itself.
func TestChildFails(t *testing.T) {
	tests := []struct {
		name, how string
		edit      func(*testing.T, *Job)
		want      Error // with {} in the message for the file
	}{
		{"no memory", "work", func(_ *testing.T, j *Job) {
			const huge = 1 << 50
			j.Plan.Table.Segment = huge
		}, Error{Kind: KindNoMemory, Message: "allocate 1125899906842624 bytes: only FREE are free", Want: 1 << 50}},
		{"file missing", "work", func(t *testing.T, j *Job) {
			if err := os.Remove(j.Plan.Files[0].Path); err != nil {
				t.Fatal(err)
			}
		}, Error{Kind: KindFileUnreadable, Message: `open "{}": no such file or directory`}},
		{"file changed before", "work", func(_ *testing.T, j *Job) { j.Plan.Files[0].Stamp.MTime-- },
			Error{Kind: KindFileChanged, Message: `check file "{}": was written`}},
		{"file removed and truncated in mid-load", "truncate", nil,
			Error{Kind: KindFileChanged, Message: `check file "{}": had 500000 bytes, has 10`}},
		{"disk error in mid-load", "work", func(t *testing.T, j *Job) {
			dir := t.TempDir() // opens, has a size, and can't be read
			st, err := stamp.Of(dir)
			if err != nil {
				t.Fatal(err)
			}
			if st.Size == 0 {
				t.Skip("directories are empty here; loader/native covers it")
			}
			j.Plan.Files = append(j.Plan.Files, layout.File{Path: dir, Stamp: st.Stamp})
			c := j.Plan.Copies[0]
			c.RowBytes -= st.Size
			c.SrcStride = c.RowBytes
			tail := c
			tail.Dst, tail.File, tail.RowBytes, tail.SrcStride = c.RowBytes, 1, st.Size, st.Size
			j.Plan.Copies = []layout.Copy{c, tail}
		}, Error{Kind: KindFileUnreadable, Message: `read "{}" at byte 0: is a directory`}},
		{"device fails", "fail", nil, Error{Kind: KindFailed, Message: "fell off the bus"}},
		{"no such device", "work", func(_ *testing.T, j *Job) { j.Device = "9" },
			Error{Kind: KindNoDevice, Message: `open device "9": there is none`}},
		{"bad plan", "work", func(_ *testing.T, j *Job) { j.Plan.Copies = nil },
			Error{Kind: KindFailed, Message: "check plan: nothing writes byte 0"}},
		{"no plan", "work", func(_ *testing.T, j *Job) { j.Plan = nil },
			Error{Kind: KindFailed, Message: "start job: the plan has no table"}},
		{"long message", "long message", nil,
			Error{Kind: KindFailed, Message: strings.Repeat("<", maxText)}},
		{"exits", "exit", nil, Error{Kind: KindDied, Message: "the loader ended early: exit status 3"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			leaves(t, func() {
				job, _ := testJob(t, 500_000)
				if test.edit != nil {
					test.edit(t, &job)
				}
				opt := options(test.how)
				if job.Plan != nil {
					opt.Env = append(opt.Env, "WCACHE_TEST_FILE="+job.Plan.Files[0].Path)
				}
				r, err := Run(t.Context(), opt, job, nil)
				var got *Error
				if !errors.As(err, &got) || r != nil {
					t.Fatalf("Run = %v, %v; want an *Error", r, err)
				}
				want := test.want
				if job.Plan != nil {
					last := job.Plan.Files[len(job.Plan.Files)-1]
					want.Message = strings.ReplaceAll(want.Message, "{}", last.Path)
				}
				want.Message = strings.ReplaceAll(want.Message, "FREE", fmt.Sprint(got.Free))
				want.Free = got.Free
				if diff := cmp.Diff(&want, got); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The parent refuses a child that sends nonsense, and closes all descriptors that came with it.
func TestChildTalksNonsense(t *testing.T) {
	for _, what := range nonsense {
		t.Run(what, func(t *testing.T) {
			leaves(t, func() {
				job, _ := testJob(t, 4096)
				r, err := Run(t.Context(), options("say: "+what), job, nil)
				var got *Error
				if !errors.As(err, &got) || got.Kind != KindFailed || r != nil {
					t.Errorf("Run = %v, %v; want an *Error of kind %q", r, err, KindFailed)
				}
			})
		})
	}
}

func TestRunCannotStart(t *testing.T) {
	job, _ := testJob(t, 4096)
	tests := []struct {
		name    string
		command []string
	}{{"no command", nil}, {"no such program", []string{"/nonexistent/wcache", "load"}}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			leaves(t, func() {
				if r, err := Run(t.Context(), Options{Command: test.command}, job, nil); err == nil {
					t.Errorf("Run = %v, want an error", r)
				}
			})
		})
	}
	leaves(t, func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r, err := Run(ctx, options("work"), job, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("Run with a context that is done = %v, %v; want Canceled", r, err)
		}
	})
}

// Case P14, and S1 for the loader: a daemon that is killed takes its child along,
// also one that hangs in its device.
func TestParentDies(t *testing.T) {
	for _, how := range []string{"hang: alloc", "hang: in fill"} {
		t.Run(how, func(t *testing.T) {
			said, err := os.CreateTemp(t.TempDir(), "stderr")
			if err != nil {
				t.Fatal(err)
			}
			defer said.Close()
			parent := exec.Command("/proc/self/exe")
			parent.Env = append(os.Environ(), childEnv+"=parent", "WCACHE_TEST_HOW="+how, "WCACHE_TEST_DIR="+t.TempDir())
			parent.Stderr = said
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			pid := 0
			testmain.Eventually(t, "the grandchild hangs", func() bool {
				b, _ := os.ReadFile(said.Name())
				_, err := fmt.Sscanf(string(b), "hanging %d", &pid)
				return err == nil
			})
			_ = parent.Process.Kill()
			_ = parent.Wait()
			testmain.Eventually(t, "the grandchild ends", func() bool { return ended(pid) })
		})
	}
}
