// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/torch"
)

// form chooses how the reply gives an entry to the engine: by handles, or by value.
func (r *replies) form(ctx context.Context, request *protocol.Request, hold *cache.Hold, p peer.Process) (protocol.Form, error) {
	segment := hold.Segment()
	handle, kept, err := segment.Handle()
	if err == nil && kept {
		err = segment.Gone()
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("hand out segment: %w", err)
	case kept && r.o.AMD: // builds of vLLM for AMD have a torch of their own
		return torch.Legacy{Handle: handle}, nil
	case kept:
		// Every torch takes a handle without a header, so an unknown torch is not refused.
		header, _ := r.headerFor(ctx, request.Key.Str("vllm_version"), p)
		return torch.Legacy{Handle: handle, Header: header}, nil
	case r.o.GPU:
		header, err := r.headerFor(ctx, request.Key.Str("vllm_version"), p)
		if err != nil {
			return nil, err
		}
		var numbers []int
		for _, f := range segment.Pieces {
			numbers = append(numbers, f.Int())
		}
		return torch.Expandable{PID: os.Getpid(), FDs: numbers, Header: header}, nil
	}
	file, err := segment.One()
	if err != nil {
		return nil, err
	}
	if r.byValue() {
		return torch.ByValue{Segment: descriptor(file.Int())}, nil
	}
	return torch.Mapped{PID: os.Getpid(), FD: file.Int()}, nil
}

// headerFor chooses the handle format that the engine's torch reads: by the release of
// vLLM, which pins its torch, else by the torch that the process has mapped, else by the
// configuration.
func (r *replies) headerFor(ctx context.Context, release string, p peer.Process) (torch.Header, error) {
	if h, known := torch.HeaderFor(release); known {
		return h, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkLimit, fmt.Errorf("look for torch: its files can't be read within %v", checkLimit))
	defer cancel()
	version, err := beside(ctx, r.checks, func(context.Context) (string, error) { return torchOf(p.PID) })
	if configured := r.configuration().Torch; err != nil && configured != "" {
		version, err = configured, nil
	}
	if err != nil {
		return 0, unknownTorch(release, err.Error())
	}
	h, known := torch.HeaderForTorch(version)
	if !known {
		return 0, unknownTorch(release, fmt.Sprintf("torch %q is unknown", version))
	}
	return h, nil
}

func unknownTorch(release, why string) error {
	//diag unsupported VERSION REASON
	// The format of a handle depends on the engine's torch. The daemon knows its version neither
	// from the release of vLLM nor from the files of the process. Set `torch` in wcache.toml(5) to
	// the version, or use a newer wcache.
	return &resolve.Refusal{
		Field:  "vllm_version",
		Reason: fmt.Sprintf("unknown handle format for vLLM %q: %s", release, why),
		Hint:   "set torch in wcache.toml to the version of its torch, such as \"2.14\"; a newer wcache may know it",
	}
}

// library matches a mapping of torch's own library in /proc/PID/maps.
var library = regexp.MustCompile(`(?m) (/.*/torch)/lib/libtorch[^/]*\.so$`)

// versionLine matches the line with the version in torch/version.py.
var versionLine = regexp.MustCompile(`(?m)^__version__ = '([^']*)'`)

// maxVersionFile is far above the size of torch/version.py, in bytes.
const maxVersionFile = 64 << 10

// torchOf reads the version of the torch that a process runs.
func torchOf(pid int) (string, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", fmt.Errorf("look for torch: %w", err)
	}
	folder := torchFolder(maps)
	if folder == "" {
		return "", errors.New("look for torch: the process has none")
	}
	// By /proc/PID/root, since the process may have another mount namespace. Nonblocking,
	// so that a pipe of this name can't block the daemon.
	f, err := os.OpenFile(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), folder, "version.py"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("look for torch: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxVersionFile))
	if err != nil {
		return "", fmt.Errorf("look for torch: %w", err)
	}
	version := torchVersion(text)
	if version == "" {
		return "", fmt.Errorf("look for torch: no version in %s", f.Name())
	}
	return version, nil
}

// torchFolder is the folder of torch in the mappings of a process, "" for none.
func torchFolder(maps []byte) string {
	m := library.FindSubmatch(maps)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// torchVersion is the version in the text of torch/version.py, "" for none.
func torchVersion(text []byte) string {
	v := versionLine.FindSubmatch(text)
	if v == nil {
		return ""
	}
	return strings.TrimSpace(string(v[1]))
}
