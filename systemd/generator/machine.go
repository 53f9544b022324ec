// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package generator makes the socket units of wcache listen where vLLM looks by
// default. Those paths have a GPU's uuid and the user's temporary directory in
// them, so they can't be written in a unit file: a user generator, see
// systemd.generator(7), writes them as drop-ins each time that the user's
// manager starts or reloads.
//
// It reads what the driver shows in /proc (see [Read]), never the driver itself,
// and knows where vLLM 0.30 to 0.33 look (see [Machine.EnginePaths]).
package generator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxInformation is many times what the driver says about a GPU.
const maxInformation = 64 << 10

// Machine is the data that decides where engines look.
type Machine struct {
	// GPUs are in nvidia-smi's order, without those that the driver excludes.
	GPUs []GPU
	// FIPS is whether the kernel runs in FIPS mode, where md5 may be forbidden.
	FIPS bool
	// WSL tells that the kernel is that of Windows's subsystem for Linux, where the GPUs
	// belong to Windows.
	WSL bool
	UID int
	// TempDir is where a Python program with this environment keeps temporary files, empty if
	// it would find no directory.
	TempDir string
	// Distrust says why engines would now refuse their default directory inside of TempDir,
	// empty if they wouldn't.
	Distrust string
	// RuntimeDir is the manager's %t.
	RuntimeDir string
	// Notes are remarks for people about things that were found and can't be used.
	Notes []string
}

// GPU is one physical GPU.
type GPU struct {
	Index int    // nvidia-smi's number: GPUs in order of their place on the bus
	Bus   string // "0000:65:00.0"
	UUID  string // in NVML's form: "GPU-" and 36 characters. Empty if it isn't known
}

// List describes the GPUs, for messages.
func (m Machine) List() string {
	var list []string
	for _, g := range m.GPUs {
		list = append(list, fmt.Sprintf("%d (%s)", g.Index, g.UUID))
	}
	return strings.Join(list, ", ")
}

// Named gives the GPUs that an instance with this name could be for, by nvidia-smi's
// number or by the beginning of a uuid. The name is good if there is exactly one. /proc
// doesn't show MIG slices.
func (m Machine) Named(name string) []GPU {
	number, err := strconv.Atoi(name)
	var found []GPU
	for _, g := range m.GPUs {
		if err == nil && number == g.Index || len(name) > len("GPU-") && strings.HasPrefix(g.UUID, name) {
			found = append(found, g)
		}
	}
	return found
}

// Read examines the machine for the user uid with the environment env. For a generator
// that is the manager's own environment with the additions of environment.d(5), without
// what a shell sets: a shell's TMPDIR is unknown here. Kernel files are read below root,
// which is "/" except in tests. Read never fails: a machine without a driver has no GPUs,
// and problems are in the Notes.
func Read(root string, uid int, env func(string) string) Machine {
	m := Machine{UID: uid, RuntimeDir: env("XDG_RUNTIME_DIR")}
	if m.RuntimeDir == "" {
		m.RuntimeDir = fmt.Sprintf("/run/user/%d", uid)
	}
	// Without the file the kernel has no FIPS mode.
	fips, _ := os.ReadFile(filepath.Join(root, "proc/sys/crypto/fips_enabled"))
	m.FIPS = string(bytes.TrimSpace(fips)) == "1"
	// Such as 5.15.167.4-microsoft-standard-WSL2.
	release, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	m.WSL = bytes.Contains(bytes.ToLower(release), []byte("microsoft"))
	m.GPUs, m.Notes = gpus(filepath.Join(root, "proc/driver/nvidia/gpus"))
	if m.TempDir = tempDir(env); m.TempDir == "" {
		//diag generator
		// Neither `TMPDIR` nor `/tmp` nor the other directories can be written, so the generator leaves out the
		// default paths. Set `TMPDIR` for the service manager.
		m.Notes = append(m.Notes, "no directory for temporary files can be written: set TMPDIR")
		return m
	}
	if m.Distrust = distrust(m.defaultDir(), uid); m.Distrust != "" {
		//diag generator REASON
		// The generator leaves out the default paths in `/tmp`, for the given reason. Mend that and
		// run `systemctl --user daemon-reload`, or give engines the instance's `socket_dir`.
		m.Notes = append(m.Notes, "engines would refuse their default directory: "+m.Distrust)
	}
	return m
}

// gpus reads the driver's folder, which has one folder per GPU, named by its bus.
func gpus(folder string) (list []GPU, notes []string) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		notes = append(notes, fmt.Sprintf("list GPUs: %v", err))
	}
	for _, e := range entries {
		if !busName.MatchString(e.Name()) {
			continue
		}
		gpu := GPU{Bus: e.Name()}
		text, err := readInformation(filepath.Join(folder, e.Name(), "information"))
		if err != nil {
			notes = append(notes, fmt.Sprintf("read GPU at %s: %v", gpu.Bus, err))
		}
		uuid, excluded := parseInformation(text)
		if excluded {
			continue
		}
		if gpu.UUID = uuid; uuid == "" && err == nil {
			// The driver shows question marks until the GPU is first used.
			//diag generator BUS
			// The driver tells the uuid after the first use of the GPU since the start of the
			// machine, so its default paths are missing. Run the two commands of the message.
			notes = append(notes, fmt.Sprintf("GPU at %s has no uuid yet: run nvidia-smi, then systemctl --user daemon-reload", gpu.Bus))
		}
		list = append(list, gpu)
	}
	slices.SortFunc(list, func(a, b GPU) int { return cmp.Compare(place(a.Bus), place(b.Bus)) })
	for i := range list {
		list[i].Index = i
	}
	return list, notes
}

func readInformation(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxInformation))
}

var (
	busName  = regexp.MustCompile(`^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$`)
	uuidText = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// parseInformation reads lines such as "GPU UUID: \t GPU-3fac8dae-…", as the
// driver's nv-procfs.c prints them.
func parseInformation(text []byte) (uuid string, excluded bool) {
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "GPU UUID":
			if uuidText.MatchString(value) {
				uuid = value
			}
		case "GPU Excluded", "Blacklisted": // the second before driver 460
			excluded = value == "Yes"
		}
	}
	return uuid, excluded
}

// place is a number that sorts GPUs in bus order, for a name that matches busName.
func place(bus string) (n uint64) {
	for i, part := range busName.FindStringSubmatch(bus)[1:] {
		v, _ := strconv.ParseUint(part, 16, 32) // busName admits digits only
		n = n<<[]int{0, 8, 8, 3}[i] | v
	}
	return n
}

// tempDir is Python's tempfile.gettempdir(): the first of some directories in which it can
// make a file. Relative directories, which mean another place for each program, are
// skipped, and so is the last resort, the current directory.
func tempDir(env func(string) string) string {
	for _, dir := range []string{env("TMPDIR"), env("TEMP"), env("TMP"), "/tmp", "/var/tmp", "/usr/tmp"} {
		if !filepath.IsAbs(dir) {
			continue
		}
		// Managers can run generators in an environment where only their output may be written.
		err := unix.Access(dir+"/.", unix.W_OK|unix.X_OK)
		if err == nil || errors.Is(err, unix.EROFS) {
			return filepath.Clean(dir)
		}
	}
	return ""
}

// distrust says what verify_private_dir of vLLM's weight_cache/protocol.py would object to
// in its default directory. A missing directory is fine: it is made with the right mode.
// Another user's directory would also make the whole socket unit fail.
func distrust(dir string, uid int) string {
	var s unix.Stat_t
	err := unix.Lstat(dir, &s)
	switch {
	case errors.Is(err, unix.ENOENT):
		return ""
	case err != nil:
		return fmt.Sprintf("%s: %v", dir, err)
	case s.Mode&unix.S_IFMT != unix.S_IFDIR:
		return dir + " is no directory: remove it"
	case int(s.Uid) != uid:
		//diag generator PATH NUMBER
		// Another user has made the directory where engines look, by accident or as a trap. Set
		// `TMPDIR` for the service manager and the engines to a directory of your own.
		return fmt.Sprintf("%s belongs to user %d: set TMPDIR to a directory of your own", dir, s.Uid)
	case s.Mode&0o077 != 0:
		//diag generator PATH MODE
		// Other users may enter the directory where engines look, so engines refuse it. Run
		// `chmod 700` on it, then `systemctl --user daemon-reload`.
		return fmt.Sprintf("%s has mode %04o: chmod 700 it", dir, s.Mode&0o7777)
	}
	return ""
}
