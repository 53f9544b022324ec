// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wcache/wcache/control"
)

// mostRSS is the most memory that a daemon without entries may have at the end, in bytes. A
// new daemon has 12 to 15 MB.
const mostRSS = 64 << 20

// idle is what a daemon that holds nothing has.
type idle struct {
	files  map[string]int // open ones, by kind
	stored string         // descriptors in the manager's keeping
}

// baselines are those of services that have just started.
func (c *churn) baselines() (map[*service]idle, error) {
	list := make(map[*service]idle)
	for _, s := range c.services {
		status, err := s.awaken(0)
		if err != nil {
			return nil, err
		}
		if list[s], err = s.idle(status.PID); err != nil {
			return nil, err
		}
	}
	return list, nil
}

var number = regexp.MustCompile(`[0-9]+`)

func (s *service) idle(pid int) (idle, error) {
	x := idle{files: make(map[string]int)}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return x, err
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			x.files[number.ReplaceAllString(to, "N")]++
		}
	}
	if s.keeps() {
		out, err := exec.Command("systemctl", "--user", "show", "-P", "NFileDescriptorStore", s.unit).Output()
		if err != nil {
			return x, fmt.Errorf("systemctl show: %w", err)
		}
		x.stored = strings.TrimSpace(string(out))
	}
	return x, nil
}

// idles is how long cleaning up after ended processes may take.
const idles = 30 * time.Second

// eventually waits until there is no fault, and counts a fault that stays.
func (c *churn) eventually(s *service, what string, fault func() string) {
	text := fault()
	for begin := time.Now(); text != "" && time.Since(begin) < idles; text = fault() {
		time.Sleep(100 * time.Millisecond)
	}
	if text != "" {
		c.tally.fault(faultLeak, "%s: %s: %s", s.name, what, text)
	}
}

// settle looks for what is left after the last request.
func (c *churn) settle(base map[*service]idle) error {
	for _, s := range c.services {
		if err := c.configure(s, ""); err != nil {
			return err
		}
		s.reload(c.manager)
		if _, err := s.awaken(0); err != nil {
			return err
		}
		c.eventually(s, "engines, loads and problems", s.busy)
		c.eventually(s, "entries", s.empty)
	}
	for _, s := range c.services {
		status, err := s.status()
		if err != nil {
			return err
		}
		c.left(s, status.PID, base[s])
	}
	return nil
}

// empty evicts everything, and reports what remains.
func (s *service) empty() string {
	_, err := s.ask(control.Request{Method: control.MethodEvict, Evict: &control.Evict{}})
	if err != nil {
		return err.Error()
	}
	status, err := s.status()
	if err != nil {
		return err.Error()
	}
	if len(status.Entries) > 0 || status.Bytes > 0 {
		return fmt.Sprintf("%d bytes of %+v", status.Bytes, status.Entries)
	}
	return ""
}

// busy describes the work that a service still has to do.
func (s *service) busy() string {
	status, err := s.status()
	if err != nil {
		return err.Error()
	}
	text := status.Problems
	for _, e := range status.Entries {
		if len(e.Engines) > 0 || e.Waiting > 0 || e.State != "ready" {
			text = append(text, fmt.Sprintf("%s of %s is %s, with %v, %d wait", e.Key[:12], e.Model, e.State, e.Engines, e.Waiting))
		}
	}
	return strings.Join(text, "; ")
}

// left checks the resources of a service that holds nothing.
func (c *churn) left(s *service, pid int, base idle) {
	c.eventually(s, "descriptors", func() string {
		now, err := s.idle(pid)
		if err != nil {
			return err.Error()
		}
		return more(base, now)
	})
	c.eventually(s, "processes", func() string {
		if list := children(pid); len(list) > 0 {
			return fmt.Sprint(list)
		}
		return ""
	})
	c.eventually(s, "memory files", func() string { return segments(pid) })
	if s.keeps() && c.manager != 0 {
		c.eventually(s, "memory files of the manager", func() string { return segments(c.manager) })
	}
	c.eventually(s, "files", s.strange)
	rss := residentBytes(pid)
	fmt.Fprintf(c.tally.out, "%s, idle: daemon %d has %d MB resident, started as one with %d open files\n", s.name, pid, rss/1e6, sum(base.files))
	if rss > mostRSS {
		c.tally.fault(faultLeak, "%s: %d bytes resident", s.name, rss)
	}
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// more lists what there is more of than at first. Sockets that clients are about to close,
// and watched roots, vary.
func more(base, now idle) string {
	var text []string
	for _, kind := range slices.Sorted(maps.Keys(now.files)) {
		if n := now.files[kind]; n > base.files[kind] {
			text = append(text, fmt.Sprintf("%d × %s, first %d", n, kind, base.files[kind]))
		}
	}
	if now.stored != base.stored {
		text = append(text, fmt.Sprintf("%s descriptors stored, first %s", now.stored, base.stored))
	}
	return strings.Join(text, "; ")
}

// segments are the memory files of weights that a process still has.
func segments(pid int) string {
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err.Error()
	}
	var text []string
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/memfd:wcache-segment") {
			text = append(text, link)
		}
	}
	return strings.Join(text, " ")
}

// strange are files in the state folder that don't belong there.
func (s *service) strange() string {
	list, err := os.ReadDir(s.state)
	if err != nil {
		return err.Error()
	}
	var text []string
	for _, e := range list {
		if name := e.Name(); name != "manifest.toml" && name != "index.json" {
			text = append(text, name)
		}
	}
	return strings.Join(text, " ")
}

// residentBytes is VmRSS of /proc/PID/status, in bytes, 0 if it can't be read.
func residentBytes(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == "VmRSS:" {
			kb, _ := strconv.Atoi(f[1])
			return kb << 10
		}
	}
	return 0
}
