// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/attached"
	"github.com/wcache/wcache/internal/fd"
)

// A file system that hangs keeps the request that looks at it, for a time, and no other.
func TestBeside(t *testing.T) {
	places := make(chan struct{}, 1)
	hang := make(chan struct{})
	limited := func() (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(t.Context(), time.Millisecond, &hangs{"/net/m", time.Millisecond})
	}
	ctx, cancel := limited()
	defer cancel()
	_, err := beside(ctx, places, func(context.Context) (int, error) { <-hang; return 0, nil })
	if want := "check files of /net/m: the file system has not answered within 1ms"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	ctx, cancel = limited()
	defer cancel()
	_, err = beside(ctx, places, func(context.Context) (int, error) { t.Error("there was no place"); return 0, nil })
	if want := "check files: too many other requests wait for file systems that don't answer"; !errors.Is(err, errChecks) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	close(hang)
	got, err := beside(t.Context(), places, func(context.Context) (int, error) { return 5, nil })
	if got != 5 || err != nil {
		t.Errorf("got %d, %v after it has answered", got, err)
	}
}

// What only touches a file, such as chmod or another hard link, costs a comparison and
// no second copy: engines go on with the one that they have.
func TestTouched(t *testing.T) {
	t.Parallel()
	root := private(t)
	dir := model(t, root, "llama", "a")
	i := start(t, on(root))
	request := getState(t, key(t, "llama-tp1r0"))
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
	shard := filepath.Join(dir, "model-00003-of-00004.safetensors")
	then := time.Now().Add(-time.Hour)
	for _, touch := range []func() error{
		func() error { return os.Chmod(shard, 0o640) },
		func() error { return os.Link(shard, filepath.Join(root, "backup")) },
		func() error { // another inode with the same times and contents
			info, err := os.Stat(shard)
			if err != nil {
				return err
			}
			b, err := os.ReadFile(shard)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(shard+".new", b, 0o600), os.Chtimes(shard+".new", info.ModTime(), info.ModTime()), os.Rename(shard+".new", shard))
		},
	} {
		do(t, touch())
		wantAnswer(t, engineAsk(t, i.target, request), "ok")
	}
	if c := i.status(t).Counts; c.Loads != 1 || c.Hits != 3 {
		t.Errorf("counts are %+v", c)
	}
	if !strings.Contains(i.log.String(), "files were touched, and hold what was loaded") {
		t.Errorf("log:\n%s", i.log.String())
	}
	// The same with other contents is seen.
	do(t, os.Chtimes(shard, then, then))
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
	loads := i.status(t).Counts.Loads
	rewrite(t, shard)
	do(t, os.Chtimes(shard, then, then))
	r := engineAsk(t, i.target, request)
	wantAnswer(t, r, "ok")
	if c := i.status(t).Counts; c.Loads != loads+1 {
		t.Errorf("counts are %+v after other contents with the same size and time", c)
	}
	if cmp.Equal(handedOut(t, r), exported(t, "llama-tp1r0")) {
		t.Error("the old weights are served")
	}
}

// What the store doesn't take, and what can't be written, is said and stops nothing.
func TestAttachedFails(t *testing.T) {
	store := newFDStore(t)
	store.full = errors.New("keep descriptors: 1 are needed")
	i := startStored(t, store)
	if want := `msg="engines are not remembered beyond a crash" err="keep descriptors: 1 are needed"`; !strings.Contains(i.log.String(), want) {
		t.Errorf("log without %s:\n%s", want, i.log.String())
	}
	do(t, i.attachments.file.Add(attached.Row{Entry: strings.Repeat("0", 64), Process: attached.Process{PID: 1 << 22}}))
	var p [2]int
	do(t, unix.Pipe2(p[:], unix.O_CLOEXEC), unix.Close(p[1]))
	pipe, err := fd.New(p[0])
	do(t, err)
	good := i.attachments.file.FD().Int()
	saved, err := i.attachments.file.FD().Dup()
	do(t, err, unix.Dup3(pipe.Int(), good, unix.O_CLOEXEC)) // which can't be written
	i.attachments.forgetEnded()
	do(t, unix.Dup3(saved.Int(), good, unix.O_CLOEXEC), saved.Close(), pipe.Close())
	if want := `msg="engines are not forgotten"`; !strings.Contains(i.log.String(), want) {
		t.Errorf("log without %s:\n%s", want, i.log.String())
	}
}

func TestPinsHang(t *testing.T) {
	i := start(t, func(s *setup) { s.Config.Pins = []string{"/net/m"} })
	for range maxChecks {
		i.checks <- struct{}{}
	}
	defer func() {
		for range maxChecks {
			<-i.checks
		}
	}()
	done := make(chan struct{})
	go func() { i.pin(); close(done) }()
	i.end() // in place of ten seconds
	<-done
	if want := `msg="pins are not looked up" err="check files: too many other requests`; !strings.Contains(i.log.String(), want) {
		t.Errorf("log without %s:\n%s", want, i.log.String())
	}
}
