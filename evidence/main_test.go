// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
)

// stagesVar tells a helper its own stage and those that it starts, as JSON.
const stagesVar = "WCACHE_TEST_STAGES"

func TestMain(m *testing.M) {
	if text := os.Getenv(stagesVar); text != "" {
		if err := play(text); err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testmain.Run(m)
}

// stage is a process with a role: this test's program under another name.
type stage struct {
	Argv []string
	Env  []string // all of it
	Dir  string   // "": the directory of its parent

	Session bool   // starts a session
	Mounts  bool   // gets a mount namespace of its own
	User    uint32 // runs as this user; 0: as its parent
	// Once it runs:
	Bind   [2]string // the first directory is mounted on the second
	Root   string    // becomes its root, with Dir below it
	Hidden bool      // is not dumpable, as after setuid
	Reads  int       // writes what Read says of this process, and ends
	Reuse  bool      // gets a pid namespace, writes what Read says of a reused pid there, and ends
}

// play is a helper's main function: it does what its stage asks, starts the next stage,
// prints its pid and waits for the end of its input.
func play(text string) error {
	var stages []stage
	if err := json.Unmarshal([]byte(text), &stages); err != nil {
		return err
	}
	s := stages[0]
	if s.Reads != 0 {
		e, err := Read(s.Reads)
		fmt.Fprintf(os.Stdout, "%v; %v\n", e, err)
		return nil
	}
	if s.Reuse {
		return reuse()
	}
	if s.Bind[0] != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount(s.Bind[0], s.Bind[1], "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	var next *exec.Cmd
	if len(stages) > 1 {
		next = command(stages[1:])
		next.Stdin, next.Stdout, next.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if next != nil {
		if err := next.Start(); err != nil {
			return err
		}
	}
	if s.Root != "" {
		if err := unix.Chroot(s.Root); err != nil {
			return err
		}
		if err := unix.Chdir(s.Dir); err != nil {
			return err
		}
	}
	if s.Hidden {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stdout, "%d %d\n", len(stages), os.Getpid())
	_, err := io.Copy(io.Discard, os.Stdin)
	if next != nil {
		_ = next.Wait()
	}
	return err
}

// command is this program in the role of the first stage. Other users may have no access to
// its path.
func command(stages []stage) *exec.Cmd {
	text, err := json.Marshal(stages)
	if err != nil {
		panic(err) // strings and numbers always can be
	}
	s := stages[0]
	c := &exec.Cmd{
		Path: "/proc/self/exe", Args: s.Argv, Dir: s.Dir,
		Env:         append(slices.Clone(s.Env), stagesVar+"="+string(text), "GORACE=atexit_sleep_ms=0"),
		SysProcAttr: &syscall.SysProcAttr{Setsid: s.Session},
	}
	if s.Root != "" {
		c.Dir = ""
	}
	if s.Mounts {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	if s.Reuse {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	}
	if s.User != 0 {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: s.User, Gid: s.User}
	}
	return c
}

// cast is a list of running helpers, each the parent of the next.
type cast struct {
	pids []int
	end  func()
}

// start runs stages, and ends them with the test.
func start(t testing.TB, stages ...stage) cast {
	t.Helper()
	c, err := launch(stages)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	return c
}

func launch(stages []stage) (c cast, err error) {
	first := command(stages)
	in, err := first.StdinPipe()
	if err != nil {
		return c, err
	}
	out, err := first.StdoutPipe()
	if err != nil {
		return c, err
	}
	first.Stderr = os.Stderr
	if err := first.Start(); err != nil {
		return c, err
	}
	c.pids = make([]int, len(stages))
	c.end = sync.OnceFunc(func() {
		_ = in.Close()
		_ = first.Wait()
	})
	lines := bufio.NewReader(out)
	for range stages {
		line, err := lines.ReadString('\n')
		var left, pid int
		if n, _ := fmt.Sscanf(line, "%d %d", &left, &pid); n != 2 {
			c.end()
			return c, fmt.Errorf("a helper says %q, %w", line, err)
		}
		c.pids[len(stages)-left] = pid
	}
	return c, nil
}

// reuse gives a pid to a second process, and writes what the evidence of the first one
// then says.
func reuse() error {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		return err
	}
	serve := []stage{{Argv: []string{"vllm", "serve", "/"}}}
	first, err := launch(serve)
	if err != nil {
		return err
	}
	before, err := Read(first.pids[0])
	if err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // a kernel never reuses a pid within a tick by itself
	first.end()
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(first.pids[0]-1)), 0); err != nil {
		return err
	}
	second, err := launch(serve)
	if err != nil {
		return err
	}
	defer second.end()
	now, err := Read(second.pids[0])
	if err != nil {
		return err
	}
	_, err = now.Locate(false)
	_, gone := before.Locate(false)
	fmt.Fprintf(os.Stdout, "one number: %v; the second: %v; the first: %v", first.pids[0] == second.pids[0], err, gone)
	return nil
}

// says runs a helper to its end, and gives what it writes.
func says(t *testing.T, s stage) string {
	t.Helper()
	out, err := command([]stage{s}).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func needRoot(t *testing.T, what string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skipf("%s needs root; make test as root covers it", what)
	}
}

// folder makes directories and files: names that end with a slash are directories,
// contents that begin with "->" are links.
func folder(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range contents {
		path := filepath.Join(dir, name)
		var err error
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		link, isLink := strings.CutPrefix(text, "->")
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case isLink:
			err = os.Symlink(link, path)
		default:
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
