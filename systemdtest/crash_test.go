// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package systemdtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/weights"
)

// Options for a long run of TestCrash: -crash.kills=500 -crash.seed=N.
var (
	crashKills = flag.Int("crash.kills", 10, "times that TestCrash kills the daemon")
	crashSeed  = flag.Uint64("crash.seed", 0, "seed of TestCrash; 0: by the clock")
)

// crashTime is the longest time from an answer to the kill of the daemon.
const crashTime = 50 * time.Millisecond

// victimVariable makes this program an engine, see playVictim.
const victimVariable = "WCACHE_VICTIM"

// victimSaid is an engine's report on its request.
type victimSaid struct {
	PID     int
	Daemon  int // pid of the daemon that answered, 0: none
	Watched bool
	Ended   bool          // whether the watch had ended at the last look
	Killed  time.Duration // time from the answer to its kill of the daemon, 0: it didn't kill
	Err     string        // why it was not answered
}

// playVictim is an engine's process. It waits for a line with the pid of a daemon to
// kill, or 0, and the time from the answer to the kill. Then it sends the request in a
// file, reports the result, and stays until its input ends.
func playVictim(request string) error {
	payload, err := os.ReadFile(request)
	if err != nil {
		return err
	}
	watching, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.Watch})
	if err != nil {
		return err
	}
	said := victimSaid{PID: os.Getpid()}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(said); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	var pid int
	var after time.Duration
	if _, err := fmt.Fscanln(in, &pid, &after); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testmain.Patience)
	defer cancel()
	reply, conn, err := client.Engine(ctx, socket(), payload)
	begin := time.Now()
	switch {
	case err != nil:
		said.Err = err.Error()
	case reply.Status != protocol.StatusOK:
		said.Err = fmt.Sprint(reply.Status, reply.Message, reply.Fields)
	default:
		_, _ = fmt.Sscanf(reply.Entries[0].Path, "/proc/%d/", &said.Daemon) // shows as 0
	}
	if conn != nil {
		_ = conn.Close() // all is read
	}
	var watch net.Conn
	if pid == 0 { // the others watch, too
		watched, keep, err := client.Engine(ctx, socket(), watching)
		if said.Watched = err == nil && watched.Status == protocol.StatusOK; said.Watched {
			watch = keep
		}
	} else {
		time.Sleep(after - time.Since(begin))
		said.Killed = time.Since(begin)
		_ = syscall.Kill(pid, syscall.SIGKILL) // another one may have
	}
	if err := out.Encode(said); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	if watch != nil {
		_ = watch.SetReadDeadline(time.Now().Add(time.Millisecond)) // shows at the read
		_, err := watch.Read(make([]byte, 1))
		said.Ended = !errors.Is(err, os.ErrDeadlineExceeded)
	}
	return out.Encode(said)
}

// victim is an engine's process, for the test.
type victim struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	key  string
	said victimSaid
}

func startVictim(t *testing.T, key, request string) *victim {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Args = []string{"python3", "generate.py"}
	c.Env = append(os.Environ(), victimVariable+"="+request)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	v := &victim{cmd: c, in: in, out: json.NewDecoder(out), key: key}
	v.listen(t)
	return v
}

func (v *victim) listen(t *testing.T) {
	t.Helper()
	if err := v.out.Decode(&v.said); err != nil {
		t.Fatalf("an engine says nothing: %v", err)
	}
}

// end ends the engine, which first reports whether its watch is still open.
func (v *victim) end(t *testing.T) {
	t.Helper()
	_ = v.in.Close() // Wait closes it too
	v.listen(t)
	if err := v.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if v.said.Ended {
		t.Errorf("the watch of engine %d has ended", v.said.PID)
	}
}

// hogs keep all cores busy for the rest of a test.
func hogs(t *testing.T) {
	t.Helper()
	for range runtime.NumCPU() {
		c := exec.Command("sh", "-c", "while :; do :; done")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait() // it was killed
		})
	}
}

// crashRequests are requests of three ranks, by key, each in a file.
func crashRequests(t *testing.T) map[string]string {
	t.Helper()
	d, err := weights.Open(filepath.Join(stage(), "testdata/checkpoints/llama"))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	dir := t.TempDir()
	for _, o := range []fingerprint.Options{{}, {TPSize: 2}, {TPSize: 2, TPRank: 1}} {
		key, err := fingerprint.Compute(d, o)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.GetState, Key: key, HasKey: true, KeyField: "cache_key", Module: protocol.DefaultModule})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, key.ID())
		if err := os.WriteFile(path, payload, 0o600); err != nil {
			t.Fatal(err)
		}
		files[key.ID()] = path
	}
	return files
}

// If this failed, a daemon that is killed soon after an answer, with all cores busy,
// would lose the entry, or forget that the engine uses it and allow an eviction.
func TestCrash(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d, %d kills", seed, *crashKills)
	begin(t, "")
	dropIn(t, "[Unit]\nStartLimitIntervalSec=0\n")
	requests := crashRequests(t)
	ask(t, socket(), recorded(t, "0.33.0-get_memory"))
	hogs(t)
	var x crashCounts
	for range *crashKills {
		if x.crash(t, rng, requests); t.Failed() {
			break
		}
	}
	slices.Sort(x.killed)
	t.Logf("%d kills, %v to %v after an answer (median %v): %d entries loaded a moment before and %d held, %d attachments, %d watches; %d were not answered before the kill; next daemon after %v (median)",
		len(x.killed), x.killed[0], x.killed[len(x.killed)-1], x.killed[len(x.killed)/2], x.fresh, x.held, x.attached, x.watched, x.unanswered, median(x.back))
	if t.Failed() {
		t.Logf("seed %d\n%s", seed, journal(t, ""))
	}
}

type crashCounts struct {
	killed, back                               []time.Duration
	fresh, held, attached, watched, unanswered int
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2].Round(time.Millisecond)
}

// crash lets one engine per rank ask at once; one of them kills the daemon a moment
// after its answer. Every second round begins with an empty daemon.
func (x *crashCounts) crash(t *testing.T, rng *rand.Rand, requests map[string]string) {
	t.Helper()
	fresh := rng.IntN(2) == 0
	if fresh {
		if out, exit := wcache(t, "evict", "--all", "--force"); exit != 0 {
			t.Fatal(out)
		}
	}
	pid := status(t).PID
	var list []*victim
	for key, path := range requests {
		v := startVictim(t, key, path)
		defer v.end(t)
		list = append(list, v)
	}
	killer := rng.IntN(len(list))
	part := rng.Float64()
	for i, v := range list {
		target, after := 0, time.Duration(0)
		if i == killer {
			target, after = pid, time.Duration(part*part*float64(crashTime)) // sooner rather than later
		}
		if _, err := fmt.Fprintln(v.in, target, int64(after)); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range list {
		v.listen(t)
	}
	if list[killer].said.Daemon != pid {
		t.Fatalf("an engine was not answered: %+v", list[killer].said)
	}
	x.killed = append(x.killed, list[killer].said.Killed)
	start := time.Now()
	var s *control.Status
	testmain.Eventually(t, "the next daemon", func() bool { s = status(t); return s.PID != pid })
	x.back = append(x.back, time.Since(start))
	for _, v := range list {
		if v.said.Daemon != pid { // it may have waited for the next one
			x.unanswered++
			continue
		}
		if v.said.Watched {
			x.watched++
		}
		i := slices.IndexFunc(s.Entries, func(e control.Entry) bool { return e.Key == v.key && e.State == "ready" })
		if i < 0 {
			t.Errorf("killed %v after an answer: the entry %.12s is lost", list[killer].said.Killed, v.key)
			continue
		}
		if at := s.Entries[i].Loaded; !at.Before(s.Since) {
			t.Errorf("killed %v after an answer: %.12s was loaded again at %v, by the daemon of %v", list[killer].said.Killed, v.key, at, s.Since)
		}
		if fresh {
			x.fresh++
		} else {
			x.held++
		}
		if !slices.ContainsFunc(s.Entries[i].Engines, func(e control.Engine) bool { return e.PID == v.said.PID }) {
			t.Errorf("killed %v after an answer: engine %d of %.12s is forgotten", list[killer].said.Killed, v.said.PID, v.key)
		}
		if out, exit := wcache(t, "evict", v.key); exit != 5 {
			t.Errorf("killed %v after an answer: evict %.12s, which engine %d has: exit %d: %s", list[killer].said.Killed, v.key, v.said.PID, exit, out)
		}
		x.attached++
	}
}
