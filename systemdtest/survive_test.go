// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package systemdtest

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/weights"
)

// digests returns the sums of the storages behind a reply's tensors, by name, read
// through the paths that an engine maps. All tensors here are contiguous.
func digests(t *testing.T, reply *protocol.Reply) map[string]string {
	t.Helper()
	if reply.Status != protocol.StatusOK {
		t.Fatalf("get_state: %s %s %v", reply.Status, reply.Message, reply.Fields)
	}
	files := make(map[string][]byte)
	sums := make(map[string]string)
	for _, e := range reply.Entries {
		if files[e.Path] == nil {
			b, err := os.ReadFile(e.Path)
			if err != nil {
				t.Fatal(err)
			}
			files[e.Path] = b
		}
		n, size := int64(1), int64(e.DType.Size())
		for _, d := range e.Shape {
			n *= d
		}
		sums[e.Name] = fmt.Sprintf("%x", sha256.Sum256(files[e.Path][e.Offset*size:(e.Offset+n)*size]))
	}
	return sums
}

// Weights outlive every death of the daemon that isn't a stop.
func TestSurvive(t *testing.T) {
	begin(t, "")
	dropIn(t, "[Service]\nWatchdogSec=10s\n") // long enough for any daemon that runs
	want := digests(t, ask(t, socket(), recorded(t, llama)))
	if len(want) != 24 {
		t.Fatalf("%d tensors", len(want))
	}
	watches := []net.Conn{watch(t), watch(t)}
	deaths := []struct {
		name string
		do   func(pid int)
		same bool // the daemon itself goes on
	}{
		{name: "kill -9", do: func(pid int) { kill(t, pid, syscall.SIGKILL) }},
		{name: "watchdog (a stopped process)", do: func(pid int) { kill(t, pid, syscall.SIGSTOP) }},
		{name: "crash of the runtime, as of a panic (SIGQUIT, exit 2)", do: func(pid int) { kill(t, pid, syscall.SIGQUIT) }},
		{name: "systemctl restart", do: func(int) { systemctl(t, "restart", unit) }},
		{name: "daemon-reexec", do: func(int) { systemctl(t, "daemon-reexec") }, same: true},
		{name: "kill -9 after daemon-reexec", do: func(pid int) { kill(t, pid, syscall.SIGKILL) }},
		{name: "new binary and restart", do: func(int) {
			// As a package does: the old name leads to another inode.
			dir := filepath.Join(os.Getenv("HOME"), "new")
			if out, err := exec.Command("sh", "-c", fmt.Sprintf("mkdir -p %s && cp /usr/bin/wcache %s/wcache", dir, dir)).CombinedOutput(); err != nil {
				t.Fatalf("%v %s", err, out)
			}
			dropIn(t, fmt.Sprintf("[Service]\nExecStart=\nExecStart=%s/wcache serve --instance=%%i\nWatchdogSec=10s\n", dir))
			systemctl(t, "restart", unit)
		}},
	}
	for _, d := range deaths {
		pid := mainPID(t)
		start := time.Now()
		d.do(pid)
		if !d.same && !strings.HasPrefix(d.name, "systemctl") && !strings.HasPrefix(d.name, "new") {
			// Before that it may accept a connection that it won't answer.
			testmain.Eventually(t, "its end", func() bool { return !alive(pid) })
			start = time.Now()
		}
		got := digests(t, ask(t, socket(), recorded(t, llama)))
		took := time.Since(start)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: weights (-want +got):\n%s", d.name, diff)
		}
		after := mainPID(t)
		if (after == pid) != d.same {
			t.Errorf("%s: pid %d, then %d", d.name, pid, after)
		}
		s := status(t)
		if !d.same && s.Counts.Loads != 0 || len(s.Entries) != 1 || s.Counts.Hits == 0 {
			t.Errorf("%s: loaded again: %+v", d.name, s.Counts)
		}
		for i, w := range watches {
			if !stillOpen(t, w) {
				t.Errorf("%s: watch %d was closed", d.name, i)
			}
		}
		t.Logf("%-55s death to answer %4d ms, loads %d, watches open, %s stored", d.name, took.Milliseconds(), s.Counts.Loads, property(t, "NFileDescriptorStore"))
	}
	systemctl(t, "stop", unit)
	for i, w := range watches {
		testmain.Eventually(t, fmt.Sprintf("stop: watch %d ends", i), func() bool { return !stillOpen(t, w) })
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// loaderOf returns the pid of the daemon's loader child, 0 if there is none.
func loaderOf(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		if more, err := os.ReadFile(task); err == nil {
			b = append(b, more...)
		}
	}
	for _, child := range strings.Fields(string(b)) {
		cmdline, _ := os.ReadFile("/proc/" + child + "/cmdline")
		if strings.HasSuffix(strings.TrimRight(string(cmdline), "\x00"), "load") {
			n, _ := strconv.Atoi(child)
			return n
		}
	}
	return 0
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A killed loader leaves nothing, and waiting engines get an error or the weights of a
// second try.
func TestLoaderKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "big")
	sparse(t, dir, 1<<30)
	begin(t, "")
	d, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := fingerprint.Compute(d, fingerprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.GetState, Key: key, HasKey: true, KeyField: "cache_key", Module: protocol.DefaultModule})
	if err != nil {
		t.Fatal(err)
	}
	configureRoots(t, dir)
	ask(t, socket(), recorded(t, "0.33.0-get_memory"))
	pid := mainPID(t)
	files, stored := openFiles(t, pid), property(t, "NFileDescriptorStore")
	late := 0 // loads that were not killed in time
	for i := 0; i < 10; {
		type answer struct {
			reply *protocol.Reply
			err   error
		}
		done := make(chan answer, 1)
		go func() {
			reply, conn, err := client.Engine(t.Context(), socket(), payload)
			if err == nil {
				_ = conn.Close()
			}
			done <- answer{reply, err}
		}()
		var loader int
		testmain.Eventually(t, "a loader", func() bool { loader = loaderOf(pid); return loader != 0 })
		moment := time.Duration(i*i) * time.Millisecond
		time.Sleep(moment)
		_ = syscall.Kill(loader, syscall.SIGKILL) // it may be gone
		a := <-done
		if a.err != nil {
			t.Fatal(a.err)
		}
		if a.reply.Status == protocol.StatusOK && late < 100 { // the load was quicker: once more
			late++
			if out, exit := wcache(t, "evict", "--all", "--force"); exit != 0 {
				t.Fatal(out)
			}
			testmain.Eventually(t, "no descriptor left", func() bool {
				return openFiles(t, pid) <= files && property(t, "NFileDescriptorStore") == stored
			})
			continue
		}
		i++
		if a.reply.Status != protocol.StatusError {
			t.Errorf("killed after %v: %s", moment, a.reply.Status)
		}
		if s := status(t); len(s.Entries) != 0 || s.Bytes != 0 {
			t.Errorf("killed after %v: left are %+v", moment, s.Entries)
		}
		testmain.Eventually(t, "no descriptor left", func() bool { return openFiles(t, pid) <= files })
		if got := property(t, "NFileDescriptorStore"); got != stored {
			t.Errorf("killed after %v: %s descriptors stored, before %s", moment, got, stored)
		}
		t.Logf("killed after %v: %q", moment, a.reply.Message)
	}
	if mainPID(t) != pid {
		t.Error("the daemon went with its loader")
	}
	if reply := ask(t, socket(), payload); reply.Status != protocol.StatusOK {
		t.Errorf("at last: %+v", reply)
	}
}

// configureRoots adds a root to the configuration.
func configureRoots(t *testing.T, dir string) {
	t.Helper()
	file := filepath.Join(os.Getenv("HOME"), ".config/wcache/wcache.toml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf("roots = [%q]\n", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// After a stop the manifest has the old entries, and the daemon serves none of them.
func TestStopForgets(t *testing.T) {
	begin(t, "")
	ask(t, socket(), recorded(t, llama))
	systemctl(t, "stop", unit)
	ask(t, socket(), recorded(t, "0.33.0-get_memory"))
	if s := status(t); len(s.Entries) != 0 {
		t.Errorf("served after a stop: %+v", s.Entries)
	}
	journal(t, "its descriptors are gone: the service was stopped")
}
