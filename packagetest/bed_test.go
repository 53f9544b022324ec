// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package packagetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wcache/wcache/control"
)

// stage is the folder that run.sh has filled, "" outside of the test bed.
func stage() string { return os.Getenv("WCACHE_BED") }

func TestMain(m *testing.M) {
	if stage() == "" {
		fmt.Fprintln(os.Stdout, "packagetest: these tests run on systems of their own: make test-packages")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	service = "wcache@host.service"
	socket  = "wcache@host.socket"
)

// user is a logged-in user with a user manager.
type user struct {
	name string
	uid  int
}

func (u user) home() string    { return "/home/" + u.name }
func (u user) runtime() string { return "/run/user/" + strconv.Itoa(u.uid) }

// command returns a command that runs as the user, not started.
func (u user) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = "/"
	c.Env = []string{"HOME=" + u.home(), "USER=" + u.name, "XDG_RUNTIME_DIR=" + u.runtime(), "LANG=C.UTF-8",
		"PATH=/usr/bin:/bin", "DBUS_SESSION_BUS_ADDRESS=unix:path=" + u.runtime() + "/bus"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.uid)}}
	return c
}

// run returns standard output and standard error, for any exit status.
func (u user) run(name string, args ...string) string {
	out, _ := u.command(name, args...).CombinedOutput() // the output says more than the error
	return strings.TrimSpace(string(out))
}

// must is run for a command that has to succeed.
func (u user) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := u.command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %s %s: %v\n%s", u.name, name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (u user) systemctl(t *testing.T, args ...string) string {
	t.Helper()
	return u.must(t, "systemctl", append([]string{"--user"}, args...)...)
}

func (u user) property(t *testing.T, name, unit string) string {
	t.Helper()
	return u.systemctl(t, "show", "-P", name, unit)
}

// configure lets the user's cache see one model.
func (u user) configure(t *testing.T) {
	t.Helper()
	text := fmt.Sprintf("roots = [%q]\n", filepath.Join(stage(), "testdata/checkpoints/llama"))
	c := u.command("sh", "-c", "mkdir -p ~/.config/wcache && cat >~/.config/wcache/wcache.toml")
	c.Stdin = strings.NewReader(text)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("configure: %v\n%s", err, out)
	}
}

// engine sends a request that was recorded from vLLM, and compares each tensor of the
// answer with what vLLM's own loader makes.
func (u user) engine(args ...string) *exec.Cmd {
	return u.command(filepath.Join(stage(), "engine"), append([]string{
		"-socket", u.runtime() + "/vllm_weight_cache/host.sock",
		"-request", filepath.Join(stage(), "testdata/wire/0.33.0-get_state-llama-tp1r0.bin"),
		"-layout", filepath.Join(stage(), "testdata/layouts/llama-tp1r0.json"), "-rows", "0"}, args...)...)
}

// attached is an engine that keeps running after its answer.
type attached struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

// attach starts an engine and waits for its answer.
func (u user) attach(t *testing.T) *attached {
	t.Helper()
	c := u.engine("-watch", filepath.Join(stage(), "testdata/wire/0.33.0-watch.bin"))
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(stdout) // the engine closes it when it is attached
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s's engine: %s", u.name, strings.TrimSpace(string(said)))
	a := &attached{c, stdin, make(chan struct{})}
	go func() {
		_ = c.Wait()
		close(a.ended)
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		<-a.ended
	})
	select {
	case <-a.ended:
		t.Fatalf("%s's engine ended: %s", u.name, stderr.String())
	case <-time.After(100 * time.Millisecond):
	}
	return a
}

// status returns the status of the user's daemon, which must run.
func (u user) status(t *testing.T) control.Status {
	t.Helper()
	var s control.Status
	if err := json.Unmarshal([]byte(u.must(t, "wcache", "--gpu", "host", "status", "--json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// root runs a command as root and returns standard output and standard error.
func root(t *testing.T, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// processes lists the processes that run a program of the package.
func processes(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, link := range links {
		program, err := os.Readlink(link)
		if err == nil && strings.HasPrefix(filepath.Base(program), "wcache") {
			list = append(list, link+" "+program)
		}
	}
	return list
}

// files lists the files of the system, each with its kind. It leaves out what isn't on a
// disk, users' files, and the package managers' records of their own work.
func files(t *testing.T) []string {
	t.Helper()
	skip := []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/home", "/var/log", "/var/tmp", "/var/cache/apt", "/var/lib/apt",
		"/var/cache/debconf", "/var/cache/ldconfig", "/var/lib/dpkg/lock", "/var/lib/dpkg/status-old", "/var/lib/dpkg/triggers", "/var/lib/rpm", "/root/.rpmdb", stage()}
	var list []string
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(skip, path):
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target, _ := os.Readlink(path) // "": no link
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s %s", info.Mode(), path, target)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// below lists the user's own files under a folder, without directories.
func below(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return list
}

// without returns the elements of list that aren't in other.
func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}
