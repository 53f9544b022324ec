// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/torch"
)

// form is how an entry is handed out to an engine.
func (s *Server) form(request *protocol.Request, hold *cache.Hold, p peer) (protocol.Form, error) {
	handles, err := legacy(hold.Segments())
	switch {
	case err != nil:
		return nil, err
	case handles != nil && s.o.AMD: // whose builds of vLLM are bound to a torch of their own
		return torch.Legacy{Handles: handles}, nil
	case handles != nil:
		// Every torch takes a bare handle: one that isn't known is no reason to refuse.
		header, _ := headerFor(request.Key.Str("vllm_version"), p, s.configuration().Torch)
		return torch.Legacy{Handles: handles, Header: header}, nil
	}
	var numbers []int
	var readers []io.ReaderAt
	for _, seg := range hold.Segments() {
		numbers = append(numbers, seg.FD.Int())
		readers = append(readers, descriptor(seg.FD.Int()))
	}
	if s.o.GPU {
		header, err := headerFor(request.Key.Str("vllm_version"), p, s.configuration().Torch)
		if err != nil {
			return nil, err
		}
		return torch.Expandable{PID: os.Getpid(), FDs: numbers, Header: header}, nil
	}
	if s.byValue() {
		return torch.ByValue{Segments: readers}, nil
	}
	return torch.Mapped{PID: os.Getpid(), FDs: numbers}, nil
}

// byValue reports whether replies hold the bytes of host memory themselves.
func (s *Server) byValue() bool { return !s.o.GPU && s.configuration().Handles == config.HandlesValue }

// headerFor chooses the form of a handle that the engine's torch reads: by the
// release of vLLM, which pins one, else by the torch that the process has mapped,
// else by the configuration.
func headerFor(release string, p peer, configured string) (torch.Header, error) {
	if h, known := torch.HeaderFor(release); known {
		return h, nil
	}
	version, err := torchOf(p.pid)
	if err != nil && configured != "" {
		version, err = configured, nil
	}
	if err != nil {
		return 0, unknownTorch(release, err.Error())
	}
	h, known := torch.HeaderForTorch(version)
	if !known {
		return 0, unknownTorch(release, fmt.Sprintf("torch %q is none that is known", version))
	}
	return h, nil
}

func unknownTorch(release, why string) error {
	return &resolve.Refusal{
		Field:  "vllm_version",
		Reason: fmt.Sprintf("which form of handle does vLLM %q read? %s", release, why),
		Hint:   "set torch = \"2.14\", or whatever its torch is, in wcache.toml; a newer wcache may know it",
	}
}

// library is a mapping of torch's own library, in /proc/PID/maps.
var library = regexp.MustCompile(`(?m) (/.*/torch)/lib/libtorch[^/]*\.so$`)

// versionLine is where torch/version.py says which torch it is.
var versionLine = regexp.MustCompile(`(?m)^__version__ = '([^']*)'`)

// maxVersionFile is far above the size of torch/version.py, in bytes.
const maxVersionFile = 64 << 10

// torchOf reads the version of the torch that a process runs.
func torchOf(pid int) (string, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", fmt.Errorf("look for torch: %w", err)
	}
	m := library.FindSubmatch(maps)
	if m == nil {
		return "", errors.New("look for torch: the process has none")
	}
	// The process may see other files under the same name.
	f, err := os.Open(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), string(m[1]), "version.py"))
	if err != nil {
		return "", fmt.Errorf("look for torch: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxVersionFile))
	if err != nil {
		return "", fmt.Errorf("look for torch: %w", err)
	}
	v := versionLine.FindSubmatch(text)
	if v == nil {
		return "", fmt.Errorf("look for torch: no version in %s", f.Name())
	}
	return strings.TrimSpace(string(v[1])), nil
}
