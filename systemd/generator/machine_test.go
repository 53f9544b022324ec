// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package generator

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// information is the output of driver 580.159.04 for an H200, byte for byte except for the
// parts that tests vary.
func information(uuid, bus, excluded string) string {
	return "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t " + uuid + "\nVideo BIOS: \t 96.00.a5.00.1a\n" +
		"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t " + bus +
		"\nDevice Minor: \t 0\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t " + excluded + "\n"
}

const (
	uuidA   = "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca"
	uuidB   = "GPU-3fac8dae-11dd-768f-7b2b-29db09e8350e"
	uuidC   = "GPU-00000000-0000-0000-0000-00000000000c"
	unknown = "GPU-????????-????-????-????-????????????"
)

// root makes a machine's /proc. The folder of the driver can't be part of
// testdata: a Go module has no file names with colons.
func root(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, "proc", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func gpuFile(bus string) string { return "driver/nvidia/gpus/" + bus + "/information" }

func TestReadGPUs(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  []GPU
		notes []string
	}{
		{"no driver", nil, nil, nil},
		{"one", map[string]string{gpuFile("0000:00:06.0"): information(uuidB, "0000:00:06.0", "No")},
			[]GPU{{0, "0000:00:06.0", uuidB}}, nil},
		{"in the order of the bus", map[string]string{
			gpuFile("0000:c1:00.0"):     information(uuidB, "", "No"),
			gpuFile("0000:21:00.0"):     information(uuidA, "", "No"),
			gpuFile("00000001:01:00.0"): information(uuidC, "", "No"), // a later domain, though its name sorts first
		}, []GPU{{0, "0000:21:00.0", uuidA}, {1, "0000:c1:00.0", uuidB}, {2, "00000001:01:00.0", uuidC}}, nil},
		{"one excluded, as nvidia-smi doesn't count it", map[string]string{
			gpuFile("0000:21:00.0"): information(uuidA, "", "Yes"),
			gpuFile("0000:c1:00.0"): information(uuidB, "", "No"),
		}, []GPU{{0, "0000:c1:00.0", uuidB}}, nil},
		{"excluded by an old driver", map[string]string{
			gpuFile("0000:21:00.0"): strings.Replace(information(uuidA, "", "Yes"), "GPU Excluded", "Blacklisted", 1)}, nil, nil},
		{"one not used since the start", map[string]string{
			gpuFile("0000:21:00.0"): information(unknown, "", "No"),
			gpuFile("0000:c1:00.0"): information(uuidB, "", "No"),
		}, []GPU{{0, "0000:21:00.0", ""}, {1, "0000:c1:00.0", uuidB}},
			[]string{"GPU at 0000:21:00.0 has no uuid yet: run nvidia-smi, then systemctl --user daemon-reload"}},
		{"one that can't be read", map[string]string{
			"driver/nvidia/gpus/0000:21:00.0/power": "",
			gpuFile("0000:c1:00.0"):                 information(uuidB, "", "No"),
		}, []GPU{{0, "0000:21:00.0", ""}, {1, "0000:c1:00.0", uuidB}},
			[]string{"read GPU at 0000:21:00.0: open ROOT/proc/driver/nvidia/gpus/0000:21:00.0/information: no such file or directory"}},
		{"no folder of a GPU", map[string]string{"driver/nvidia/gpus/README": "", "driver/nvidia/gpus/x/information": information(uuidA, "", "No")}, nil, nil},
		{"no folder at all", map[string]string{"driver/nvidia/gpus": ""}, nil,
			[]string{"list GPUs: open ROOT/proc/driver/nvidia/gpus: not a directory"}},
		{"a uuid that would be another path", map[string]string{gpuFile("0000:21:00.0"): information("GPU-../../../x", "", "No")},
			[]GPU{{0, "0000:21:00.0", ""}},
			[]string{"GPU at 0000:21:00.0 has no uuid yet: run nvidia-smi, then systemctl --user daemon-reload"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := root(t, test.files)
			tmp := t.TempDir()
			m := Read(dir, os.Getuid(), env("TMPDIR="+tmp))
			for i := range m.Notes {
				m.Notes[i] = strings.ReplaceAll(m.Notes[i], dir, "ROOT")
			}
			want := Machine{GPUs: test.want, UID: os.Getuid(), TempDir: tmp, RuntimeDir: fmt.Sprintf("/run/user/%d", os.Getuid()), Notes: test.notes}
			if diff := cmp.Diff(want, m); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
		})
	}
}

func TestReadFIPS(t *testing.T) {
	for text, want := range map[string]bool{"1\n": true, "0\n": false, "": false} {
		dir := root(t, map[string]string{"sys/crypto/fips_enabled": text})
		if got := Read(dir, 1000, env()).FIPS; got != want {
			t.Errorf("%q: FIPS is %v", text, got)
		}
	}
	if Read(t.TempDir(), 1000, env()).FIPS {
		t.Error("FIPS without the kernel's file")
	}
}

func TestTempDir(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	file := filepath.Join(a, "file")
	if err := os.WriteFile(file, nil, 0o777); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		env  []string
		want string
	}{
		{"TMPDIR first", []string{"TMPDIR=" + a, "TEMP=" + b}, a},
		{"then TEMP", []string{"TEMP=" + a, "TMP=" + b}, a},
		{"then TMP", []string{"TMP=" + a}, a},
		{"empty is unset", []string{"TMPDIR=", "TMP=" + a}, a},
		{"missing", []string{"TMPDIR=" + a + "/missing", "TEMP=" + b}, b},
		{"a file", []string{"TMPDIR=" + file, "TEMP=" + b}, b},
		{"relative", []string{"TMPDIR=tmp", "TEMP=" + b}, b},
		{"not clean", []string{"TMPDIR=" + a + "//x/../"}, a},
		{"none set", nil, "/tmp"},
	}
	if err := os.Mkdir(filepath.Join(a, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := tempDir(env(test.env...)); got != test.want {
				t.Errorf("directory is %q, not %q", got, test.want)
			}
		})
	}
}

func TestDistrust(t *testing.T) {
	dir := t.TempDir()
	uid := os.Getuid()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, "private"), 0o700))
	must(os.Mkdir(filepath.Join(dir, "open"), 0o700))
	must(os.Chmod(filepath.Join(dir, "open"), 0o770))
	must(os.Symlink("private", filepath.Join(dir, "link")))
	must(os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	tests := []struct {
		name string
		uid  int
		want string
	}{
		{"missing", uid, ""},
		{"private", uid, ""},
		{"private", uid + 1, fmt.Sprintf("DIR/private belongs to user %d: set TMPDIR to a directory of your own", uid)},
		{"open", uid, "DIR/open has mode 0770: chmod 700 it"},
		{"link", uid, "DIR/link is no directory: remove it"},
		{"file", uid, "DIR/file is no directory: remove it"},
		{"file/below", uid, "DIR/file/below: not a directory"},
	}
	for _, test := range tests {
		got := strings.ReplaceAll(distrust(filepath.Join(dir, test.name), test.uid), dir, "DIR")
		if got != test.want {
			t.Errorf("%s: %q, not %q", test.name, got, test.want)
		}
	}
}

func TestReadDistrusts(t *testing.T) {
	tmp := t.TempDir()
	planted := filepath.Join(tmp, "vllm_weight_cache_1000")
	if err := os.Symlink("/tmp", planted); err != nil {
		t.Fatal(err)
	}
	why := planted + " is no directory: remove it"
	want := Machine{UID: 1000, TempDir: tmp, Distrust: why, RuntimeDir: "/run/user/7",
		Notes: []string{"engines would refuse their default directory: " + why}}
	got := Read(t.TempDir(), 1000, env("TMPDIR="+tmp, "XDG_RUNTIME_DIR=/run/user/7"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("-want +got:\n" + diff)
	}
}

func FuzzParseInformation(f *testing.F) {
	f.Add([]byte(information(uuidA, "0000:00:06.0", "No")))
	f.Add([]byte(information(unknown, "0000:00:06.0", "Yes")))
	f.Add([]byte("GPU UUID"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if uuid, _ := parseInformation(text); uuid != "" && !uuidText.MatchString(uuid) {
			t.Errorf("uuid is %q", uuid)
		}
	})
}

// env is an environment with only the given variables.
func env(list ...string) func(string) string {
	return func(name string) string {
		for _, v := range list {
			if rest, ok := strings.CutPrefix(v, name+"="); ok {
				return rest
			}
		}
		return ""
	}
}

// Case D1: a name stands for no GPU, one, or several, and never for another one.
func TestNamed(t *testing.T) {
	a, b, c, late := GPU{0, "0000:19:00.0", uuidA}, GPU{1, "0000:3b:00.0", uuidB}, GPU{2, "0000:5d:00.0", uuidC}, GPU{Index: 3, Bus: "0000:9b:00.0"}
	m := Machine{GPUs: []GPU{a, b, c, late}}
	for name, want := range map[string][]GPU{
		"0": {a}, "2": {c}, "3": {late}, "4": nil, "-1": nil, "": nil,
		uuidB: {b}, "GPU-c": {a}, "GPU-": nil, "GPU": nil, "GPU-d": nil, "gpu-c": nil,
		"MIG-c0310b5e": nil, "host": nil,
	} {
		if diff := cmp.Diff(want, m.Named(name)); diff != "" {
			t.Errorf("%q: -want +got:\n%s", name, diff)
		}
	}
	two := Machine{GPUs: []GPU{a, {1, "0000:3b:00.0", "GPU-c0310b5e-0000-0000-0000-000000000000"}}}
	if diff := cmp.Diff(two.GPUs, two.Named("GPU-c0310b5e")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, want := two.List(), "0 ("+uuidA+"), 1 (GPU-c0310b5e-0000-0000-0000-000000000000)"; got != want {
		t.Errorf("List gives %q, want %q", got, want)
	}
}
