// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package config reads wcache.toml. Missing keys have defaults that work, unknown keys
// are errors with file and line, and a missing file counts as empty.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// MaxFile is the largest configuration file that is read, in bytes.
const MaxFile = 1 << 20

// Config is the configuration of one instance. The zero value is not valid; see
// [Default].
type Config struct {
	// Roots are folders in which models are looked for: model directories, folders of
	// them, or Hugging Face caches. The user's own Hugging Face cache is always a root.
	Roots []string `toml:"roots"`
	// Pins are model directories. If several directories fit a request, the pinned one is
	// meant; entries of pinned directories are not evicted.
	Pins []string `toml:"pins"`
	// Policy says what may be loaded: PolicyAny or PolicyPinned.
	Policy string `toml:"policy"`
	// Identify says how to decide which of several directories with equal headers an
	// engine means: IdentifyKnown or IdentifyStrict.
	Identify string `toml:"identify"`
	// Budget is the most memory that all entries may hold together; 0 is no limit except
	// the device's.
	Budget Bytes `toml:"budget"`
	// Preload makes the daemon load the pins when it starts, in the ranks and types in which
	// it held them before.
	Preload bool `toml:"preload"`
	// IdleEvict is how long an unpinned entry stays that no engine uses; 0 keeps it as long
	// as there is room.
	IdleEvict Duration `toml:"idle_evict"`
	// IdleExit is how long an instance that holds nothing keeps running, 0 for always.
	IdleExit Duration `toml:"idle_exit"`
	// RequestTimeout bounds the reading of one request and the writing of one reply.
	RequestTimeout Duration `toml:"request_timeout"`
	// LoadTimeout bounds one load, from the start of the loader to its last byte.
	LoadTimeout Duration `toml:"load_timeout"`
	// MemoryWait is how long a load waits for GPU memory that other programs hold.
	MemoryWait Duration `toml:"memory_wait"`
	// Handles is the form in which the daemon hands out memory. Host memory has
	// HandlesMapped or HandlesValue; for GPU memory both are descriptors, which outlive
	// every process. HandlesLegacy is for engines that can't use those, such as engines in
	// another pid namespace: one process per entry holds the memory. Each costs a CUDA
	// context, and the weights end with the daemon. AMD GPUs always use it.
	Handles string `toml:"handles"`
	// Assume names values that engines of old releases don't send and that count as equal
	// to the checkpoint's: AssumeRope.
	Assume []string `toml:"assume"`
	// Workers is the number of threads of a load, 0 for automatic.
	Workers int `toml:"workers"`
	// Block is the most bytes that such a thread reads at once, from MinBlock to MaxBlock,
	// 0 for a size that suits the device.
	Block Bytes `toml:"block"`
	// Direct makes a load read files that aren't in the page cache directly, without
	// filling the cache. Otherwise the files stay in the cache for a next load.
	Direct bool `toml:"direct"`
	// Verify is when the sha256 of a model's files is computed. VerifyLoad: with each load,
	// which takes longer and fails if the name in a Hugging Face cache has another digest.
	// VerifyIdle: after the load, at idle priority. VerifyOff: never.
	Verify string `toml:"verify"`
	// Torch is the version of the engines' torch, such as "2.14", for builds of vLLM whose
	// version doesn't tell it; "" otherwise.
	Torch string `toml:"torch"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `toml:"log_level"`
}

// Values of the configuration.
const (
	PolicyAny    = "any"
	PolicyPinned = "pinned"
	// IdentifyKnown accepts a directory that is the only known one that fits, if every root
	// was searched whole. IdentifyStrict requires that the engine's command line, its key or
	// a pin names the directory.
	IdentifyKnown  = "known"
	IdentifyStrict = "strict"
	HandlesMapped  = "mapped"
	HandlesValue   = "value"
	HandlesLegacy  = "legacy"
	AssumeRope     = "rope"
	VerifyLoad     = "load"
	VerifyIdle     = "idle"
	VerifyOff      = "off"
)

// Limits of Block, in bytes.
const (
	MinBlock = 1 << 20
	MaxBlock = 256 << 20
)

// torchVersion matches a value of Torch.
var torchVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+([.+].*)?$`)

// maxWorkers is more than the number of cores of any known machine.
const maxWorkers = 1024

// Default is the configuration without any file.
func Default() Config {
	return Config{
		Policy:         PolicyAny,
		Identify:       IdentifyKnown,
		IdleExit:       Duration(10 * time.Minute),
		RequestTimeout: Duration(10 * time.Second),
		LoadTimeout:    Duration(time.Hour),
		MemoryWait:     Duration(5 * time.Second),
		Handles:        HandlesMapped,
		Direct:         true,
		Verify:         VerifyIdle,
		LogLevel:       "info",
	}
}

// Error is a fault in a configuration file.
type Error struct {
	File string
	Line int // from 1, 0 if no line is at fault
	Text string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		//diag - the page begins with it
		return fmt.Sprintf("read configuration: %s: %s", e.File, e.Text)
	}
	//diag - the page begins with it
	return fmt.Sprintf("read configuration: %s:%d: %s", e.File, e.Line, e.Text)
}

// Advice is what to do about it.
func (e *Error) Advice() string { return "correct it in wcache.toml" }

// Paths are the configuration files for a user, in the order in which they are read:
// the system's, then the user's own. A user without a home directory has no own file: a
// relative path would depend on the working directory of the process.
func Paths(env func(string) string) []string {
	paths := []string{"/etc/wcache/wcache.toml"}
	folder := env("XDG_CONFIG_HOME")
	if home := env("HOME"); !filepath.IsAbs(folder) && filepath.IsAbs(home) { // the XDG specification ignores relative paths
		folder = filepath.Join(home, ".config")
	}
	if filepath.IsAbs(folder) {
		paths = append(paths, filepath.Join(folder, "wcache", "wcache.toml"))
	}
	return paths
}

// Load reads the files in order, each one over the result of the earlier ones, and the
// table of the named instance over the file's top level. It skips files that don't
// exist. The error is an [*Error] if a file's content is at fault.
func Load(paths []string, instance string, env func(string) string) (Config, error) {
	c := Default()
	for _, p := range paths {
		text, err := read(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Config{}, err
		}
		if c, err = merge(c, p, text, instance); err != nil {
			return Config{}, err
		}
		if f := c.homeless(env); f != nil {
			return Config{}, &Error{File: p, Line: lineOf(text, toml.Key{f.key}), Text: f.Error()}
		}
	}
	c.Roots = expand(c.Roots, env)
	c.Pins = expand(c.Pins, env)
	return c, nil
}

func read(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	if !st.Mode().IsRegular() || st.Size() > MaxFile {
		//diag config NUMBER
		// The path of the configuration leads to a directory, or to a file that is far too large.
		// Name the right file.
		return "", &Error{File: path, Text: fmt.Sprintf("not a regular file of at most %d bytes", MaxFile)}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	return string(b), nil
}

// merge reads one file over base.
func merge(base Config, file, text, instance string) (Config, error) {
	document := struct {
		Config
		Instance map[string]toml.Primitive `toml:"instance"`
	}{Config: base}
	meta, err := toml.Decode(text, &document)
	if err != nil {
		return Config{}, parseError(file, err)
	}
	result := document.Config
	if f := result.check(); f != nil {
		return Config{}, &Error{File: file, Line: lineOf(text, toml.Key{f.key}), Text: f.Error()}
	}
	// The tables of all instances are read, so that all instances agree on whether a file is
	// valid.
	for _, name := range slices.Sorted(maps.Keys(document.Instance)) {
		over := document.Config
		if err := meta.PrimitiveDecode(document.Instance[name], &over); err != nil {
			return Config{}, parseError(file, err)
		}
		if f := over.check(); f != nil {
			return Config{}, &Error{File: file, Line: lineOf(text, toml.Key{"instance", name, f.key}), Text: f.Error()}
		}
		if name == instance {
			result = over
		}
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		//diag config NAME
		// The key is misspelt, belongs to another version of wcache, or is in a table that is not
		// an instance's. Correct or remove it.
		return Config{}, &Error{File: file, Line: lineOf(text, unknown[0]), Text: fmt.Sprintf("unknown key %q", unknown[0])}
	}
	return result, nil
}

// position matches the place of a fault in the parser's errors. Only some of its errors
// have it as a field.
var position = regexp.MustCompile(`(?s)^toml: line (\d+)(?: \(last key "(.*?)"\))?: (.*)$`)

func parseError(file string, err error) error {
	m := position.FindStringSubmatch(err.Error())
	if m == nil {
		return &Error{File: file, Text: err.Error()}
	}
	line, _ := strconv.Atoi(m[1]) // digits; a number that is too large gives no line
	text := m[3]
	if m[2] != "" {
		text = m[2] + ": " + text
	}
	return &Error{File: file, Line: line, Text: text}
}

// fault is a key whose value is out of range.
type fault struct{ key, text string }

func (f *fault) Error() string { return f.key + ": " + f.text }

func (c *Config) check() *fault {
	oneOf := func(key, got string, words ...string) *fault {
		if slices.Contains(words, got) {
			return nil
		}
		//diag config VALUE LIST
		// The key takes one of the words that the message lists. Use one of them.
		return &fault{key, fmt.Sprintf("%q is not one of %s", got, strings.Join(words, ", "))}
	}
	faults := []*fault{
		oneOf("policy", c.Policy, PolicyAny, PolicyPinned),
		oneOf("identify", c.Identify, IdentifyKnown, IdentifyStrict),
		oneOf("handles", c.Handles, HandlesMapped, HandlesValue, HandlesLegacy),
		oneOf("verify", c.Verify, VerifyLoad, VerifyIdle, VerifyOff),
		oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error"),
	}
	for _, a := range c.Assume {
		faults = append(faults, oneOf("assume", a, AssumeRope))
	}
	if c.Workers < 0 || c.Workers > maxWorkers {
		//diag config NUMBER NUMBER
		// The number is out of its range. Correct it.
		faults = append(faults, &fault{"workers", fmt.Sprintf("%d is not from 0 to %d", c.Workers, maxWorkers)})
	}
	if c.Block != 0 && (c.Block < MinBlock || c.Block > MaxBlock) {
		//diag config NUMBER
		// The size of a block has to be in this range. Correct it, or remove the line for the
		// default.
		faults = append(faults, &fault{"block", fmt.Sprintf("%d bytes are not from 1MiB to 256MiB", c.Block)})
	}
	if c.Torch != "" && !torchVersion.MatchString(c.Torch) {
		//diag config VALUE
		// `torch` takes the first two numbers of a version, in quotation marks. Write what
		// `python -c "import torch; print(torch.__version__)"` begins with.
		faults = append(faults, &fault{"torch", fmt.Sprintf("%q is not a version such as \"2.14\"", c.Torch)})
	}
	for key, d := range map[string]Duration{"request_timeout": c.RequestTimeout, "load_timeout": c.LoadTimeout, "memory_wait": c.MemoryWait} {
		if d == 0 {
			//diag config
			// With a limit of 0, every request would fail at once. Give a time span above 0, or
			// remove the line for the default.
			faults = append(faults, &fault{key, "must be more than 0"})
		}
	}
	for key, list := range map[string][]string{"roots": c.Roots, "pins": c.Pins} {
		for _, p := range list {
			if !filepath.IsAbs(p) && p != "~" && !strings.HasPrefix(p, "~/") {
				//diag config PATH
				// The daemon has no working directory that a relative path could begin at. Write
				// the whole path, or begin it with `~/`.
				faults = append(faults, &fault{key, fmt.Sprintf("%q is neither an absolute path nor starts with ~/", p)})
			}
		}
	}
	faults = slices.DeleteFunc(faults, func(f *fault) bool { return f == nil })
	if len(faults) == 0 {
		return nil
	}
	return slices.MinFunc(faults, func(a, b *fault) int { return strings.Compare(a.key, b.key) })
}

// homeless is the fault of a path that begins with ~ if no home directory is known.
func (c *Config) homeless(env func(string) string) *fault {
	if filepath.IsAbs(env("HOME")) {
		return nil
	}
	for _, list := range []struct {
		key   string
		paths []string
	}{{"pins", c.Pins}, {"roots", c.Roots}} {
		for _, p := range list.paths {
			if !filepath.IsAbs(p) {
				//diag config PATH
				// Neither `HOME` nor the user database says where `~` leads. Set `HOME` for the
				// service, or write the whole path.
				return &fault{list.key, fmt.Sprintf("%q needs a home directory, and none is known: set HOME, or write an absolute path", p)}
			}
		}
	}
	return nil
}

// expand replaces a leading ~ with the home directory.
func expand(paths []string, env func(string) string) []string {
	var list []string
	for _, p := range paths {
		if p == "~" || strings.HasPrefix(p, "~/") {
			p = filepath.Join(env("HOME"), p[1:])
		}
		list = append(list, filepath.Clean(p))
	}
	return list
}
