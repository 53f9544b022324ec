// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/daemon/socket"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/weights/index"
)

// With a broken configuration the daemon serves its entries, and the error for other models names
// the line. When it is mended and reloaded, it counts.
func TestBrokenConfiguration(t *testing.T) {
	t.Parallel()
	broken := &config.Error{File: "/etc/wcache/wcache.toml", Line: 3, Text: `unknown key "root"`}
	const text = `read configuration: /etc/wcache/wcache.toml:3: unknown key "root"`
	const refused = "error: nothing is loaded with a broken configuration: " + text +
		" (correct it in wcache.toml; after a change of wcache.toml: systemctl --user reload wcache@host.service, or SIGHUP)"
	request := getState(t, key(t, "llama-tp1r0"))
	t.Run("from the start", func(t *testing.T) {
		i := start(t, func(s *setup) { s.ConfigErr = broken })
		wantAnswer(t, engineAsk(t, i.target, request), refused)
		wantAnswer(t, engineAsk(t, i.target, recorded(t, "0.33.0-get_memory")), "ok")
		if diff := cmp.Diff([]string{text}, i.status(t).Problems); diff != "" {
			t.Errorf("problems -want +got:\n%s", diff)
		}
		do(t, i.configure(nil, nil))
		wantAnswer(t, engineAsk(t, i.target, request), "ok")
		if diff := cmp.Diff([]string{}, i.status(t).Problems); diff != "" {
			t.Errorf("problems -want +got:\n%s", diff)
		}
	})
	t.Run("while running", func(t *testing.T) {
		i := start(t, nil)
		wantAnswer(t, engineAsk(t, i.target, request), "ok")
		if err := i.configure(nil, broken); err == nil || err.Error() != text {
			t.Errorf("reload says %v", err)
		}
		wantAnswer(t, engineAsk(t, i.target, request), "ok")
		wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), refused)
		do(t, i.configure(nil, nil))
		wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), "ok")
	})
}

// A manifest that can't be written is said so, once in the log and in the status,
// and engines don't notice. The old one stays as it was.
func TestManifestNotWritten(t *testing.T) {
	t.Parallel()
	state := filepath.Join(private(t), "state")
	path := filepath.Join(state, "manifest.toml")
	i := start(t, func(s *setup) { s.Manifest = path })
	saved := func(path string) int {
		m, err := manifest.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return len(m.Entries)
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	testmain.Eventually(t, "the manifest has the entry", func() bool { return saved(path) == 1 })

	// Root writes into folders of any mode, but into none that is a file. The two change
	// places at once: the manifest may be being written.
	exchange := func() error {
		return unix.Renameat2(unix.AT_FDCWD, state, unix.AT_FDCWD, state+".bak", unix.RENAME_EXCHANGE)
	}
	do(t, os.WriteFile(state+".bak", nil, 0o600), exchange())
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), "ok")
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama_tied-tp1r0"))), "ok")
	said := func() int { return strings.Count(i.log.String(), "manifest is not written") }
	testmain.Eventually(t, "status and log say it", func() bool { return len(i.status(t).Problems) == 1 && said() > 0 })
	if got := i.status(t).Problems[0]; !strings.HasPrefix(got, "write manifest: ") || !strings.Contains(got, state) {
		t.Errorf("status says %q", got)
	}
	if n := said(); n != 1 {
		t.Errorf("it is in the log %d times", n)
	}
	if n := saved(state + ".bak/manifest.toml"); n != 1 {
		t.Errorf("the old manifest has %d entries", n)
	}
	// Nobody asks for anything: it is tried again until it succeeds (case C3).
	do(t, exchange())
	testmain.Eventually(t, "the manifest is written again", func() bool { return saved(path) == 3 && len(i.status(t).Problems) == 0 })
	if !strings.Contains(i.log.String(), "manifest is written again") {
		t.Error("it is not in the log")
	}
}

// Whatever connects in the moment in which an idle service ends is answered: by
// it, or by the next one, since the socket is another's.
func TestIdleExit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(private(t), "t.sock")
	made, lock, err := socket.Listen(path)
	do(t, err)
	defer func() { do(t, made.Close(), lock.Close()) }()

	// The manager: it keeps the socket, and starts a service when one has ended and
	// somebody waits.
	ctx, cancel := context.WithCancel(t.Context())
	var ends atomic.Int64
	done := make(chan error, 1)
	go func() { done <- manage(ctx, made, &ends) }()
	for round := range 3 {
		if got := <-later(t, path, recorded(t, "0.33.0-get_memory")); got != "ok" { // starts it
			t.Fatal(got)
		}
		got := make(chan string)
		for n := range 100 {
			go func() {
				time.Sleep(idleEvery + time.Duration(n-50)*400*time.Microsecond) // across the moment
				got <- <-later(t, path, recorded(t, "0.33.0-get_memory"))
			}()
		}
		for range 100 {
			if got := <-got; got != "ok" {
				t.Errorf("round %d: %s", round, got)
			}
		}
	}
	testmain.Eventually(t, "the end of an idle service", func() bool { return ends.Load() > 0 })
	if got := <-later(t, path, recorded(t, "0.33.0-get_memory")); got != "ok" {
		t.Errorf("after it: %s", got)
	}
	cancel()
	do(t, <-done)
}

// manage runs servers on a socket, one after another as they end, like systemd.
func manage(ctx context.Context, socket *net.UnixListener, ends *atomic.Int64) error {
	for ctx.Err() == nil {
		f, err := socket.File()
		if err != nil {
			return err
		}
		waits, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 20)
		if err != nil && !errors.Is(err, unix.EINTR) || waits <= 0 {
			_ = f.Close()
			continue
		}
		l, err := listenerOf(f)
		if err != nil {
			return err
		}
		x := index.New(index.Options{})
		defer x.Close()
		s, err := New(Options{
			Instance: "host", Device: "host", Index: x, Activated: true,
			Configure: func() (config.Config, error) {
				c := config.Default()
				c.IdleExit = 1
				return c, nil
			},
			Env: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		if err := s.Serve(ctx, []Listener{{UnixListener: l, Role: Target}}); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		ends.Add(1)
	}
	return nil
}

// Only an idle service ends by itself, and never one whose socket no other process keeps.
func TestNotIdle(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Config.IdleExit = 1; s.Activated = false })
	j := start(t, func(s *setup) { s.Config.IdleExit = 1; s.Activated = true })
	wantAnswer(t, engineAsk(t, j.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	time.Sleep(2 * idleEvery)
	wantAnswer(t, engineAsk(t, i.target, recorded(t, "0.33.0-get_memory")), "ok")
	wantAnswer(t, engineAsk(t, j.target, recorded(t, "0.33.0-get_memory")), "ok")
}

// All that the manager shows beside the service's name.
func TestStatusLine(t *testing.T) {
	t.Parallel()
	lines := make(chan string, 1000)
	i := start(t, func(s *setup) { s.Status = func(text string) { lines <- text } })
	says := func(want string) func() bool {
		return func() bool {
			for len(lines) > 0 {
				if <-lines == want {
					return true
				}
			}
			return false
		}
	}
	testmain.Eventually(t, "the line tells that nothing is there", says("empty"))
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	testmain.Eventually(t, "the line tells of the engine", says("1 model, 0.0 GiB, 1 engine attached"))
}

// A manager that doesn't read what it is told keeps no engine waiting.
func TestStatusLineUnread(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	i := start(t, func(s *setup) { s.Status = func(string) { <-read } })
	t.Cleanup(func() { close(read) })
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
}

func listenerOf(f *os.File) (*net.UnixListener, error) {
	l, err := net.FileListener(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}
