// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package systemd_test checks the unit files of this folder. "make test-systemd" tests
// the behaviour that only a running manager can show.
package systemd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/systemd/generator"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const uuid = "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca"

var units = []string{"wcache@.socket", "wcache-draft@.socket", "wcache@.service"}

// For systemd-analyze an unknown key is a line on stderr and not an error, so here any
// output is an error. Manual pages come with the packages, and are checked there.
func TestVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze: make test-systemd verifies the units")
	}
	for _, hardened := range []bool{false, true} {
		t.Run(fmt.Sprintf("hardened=%v", hardened), func(t *testing.T) {
			dir := t.TempDir()
			run, err := os.MkdirTemp("", "run") // the paths of sockets are short
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(run)
			for _, name := range units {
				// The binary needn't be installed.
				write(t, filepath.Join(dir, name), strings.Replace(read(t, name), "=/usr/bin/wcache ", "=/bin/sh ", 1))
			}
			if hardened {
				write(t, filepath.Join(dir, "wcache@.service.d/hardened.conf"), read(t, "hardened.conf"))
			}
			if err := generator.Write(dir, generator.DropIns(generator.Machine{
				GPUs: []generator.GPU{{Index: 0, Bus: "0000:00:06.0", UUID: uuid}},
				UID:  1000, TempDir: "/tmp/100% mine", RuntimeDir: run, FIPS: true,
			})); err != nil {
				t.Fatal(err)
			}
			args := []string{"--user", "--man=no", "verify"}
			for _, instance := range []string{"", "0", uuid, "host"} {
				for _, name := range units {
					args = append(args, filepath.Join(dir, strings.Replace(name, "@", "@"+instance, 1)))
				}
			}
			cmd := exec.Command(analyze, args...)
			cmd.Env = []string{"XDG_RUNTIME_DIR=" + run, "HOME=" + dir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
			if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
				t.Errorf("systemd-analyze: %v, and says:\n%s", err, out)
			}
		})
	}
}

// The service must survive with every stored descriptor open at its start.
func TestLimitsAgree(t *testing.T) {
	text := read(t, "wcache@.service")
	number := func(pattern string) int {
		t.Helper()
		found := regexp.MustCompile(`(?m)^` + pattern).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no line %s", pattern)
		}
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	store, said, open := number(`FileDescriptorStoreMax=(\d+)$`), number(`Environment=WCACHE_FDSTORE=(\d+)$`), number(`LimitNOFILE=(\d+):`)
	if said != store {
		t.Errorf("WCACHE_FDSTORE is %d and FileDescriptorStoreMax %d", said, store)
	}
	if open < 2*store {
		t.Errorf("LimitNOFILE is %d with %d stored descriptors", open, store)
	}
}

// Every socket unit has these lines, because engines refuse wider permissions.
func TestSocketsArePrivate(t *testing.T) {
	for _, name := range units[:2] {
		text := read(t, name)
		for _, line := range []string{"SocketMode=0600", "DirectoryMode=0700", "ConditionUser=!root"} {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("%s has no %s", name, line)
			}
		}
	}
	for _, name := range append(units, "hardened.conf") {
		if strings.Contains(strings.ReplaceAll(read(t, name), "never %I", ""), "%I") {
			t.Errorf("%s has %%I, which makes slashes of a uuid's dashes", name)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
