// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/testmain"
)

// Whatever a child does that is asked about a GPU, there is an answer or an error,
// and no child is left.
func TestAsk(t *testing.T) {
	slow := errors.New("it is slow")
	for _, c := range []struct {
		name, script, want string
	}{
		{"says nothing", "exit 0", "ask about GPU GPU-1: read the child's answer: unexpected end of JSON input"},
		{"says nonsense", "echo no", "ask about GPU GPU-1: read the child's answer: invalid character 'o' in literal null (expecting 'u')"},
		{"says too much", "head -c 2000000 /dev/zero", "ask about GPU GPU-1: the child ended early: "},
		{"fails", "exit 3", "ask about GPU GPU-1: the child ended early: exit status 3"},
		{"dies", "kill -9 $$", "ask about GPU GPU-1: the child ended early: signal: killed"},
		{"hangs", "exec sleep 3600", "ask about GPU GPU-1: it is slow"},
		{"leaves one that hangs", "sleep 3600 & wait", "ask about GPU GPU-1: it is slow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			limit := testmain.Patience
			if strings.Contains(c.script, "3600") {
				limit = 50 * time.Millisecond
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, slow)
			defer cancel()
			h, err := Ask(ctx, Options{Command: []string{"/bin/sh", "-c", c.script, "sh"}}, "GPU-1")
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, %v; want %s", h, err, c.want)
			}
		})
	}
	h, err := Ask(t.Context(), Options{Command: []string{"/bin/sh", "-c", `echo "{\"uuid\":\"$1\",\"state\":\"lost\",\"used_bytes\":10,\"unowned_bytes\":6,\"processes\":[{\"pid\":1,\"bytes\":4},{\"pid\":2,\"bytes\":-1}]}"`, "sh"}}, "GPU-1")
	if err != nil {
		t.Fatal(err)
	}
	want := &device.GPU{UUID: "GPU-1", State: device.GPULost, Used: 10, Unowned: 6, Processes: []device.GPUProcess{{PID: 1, Bytes: 4}, {PID: 2, Bytes: -1}}}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	if !h.Gone() {
		t.Error("a GPU that is lost isn't gone")
	}
	if _, err := Ask(t.Context(), Options{Command: []string{"/none"}}, "GPU-1"); err == nil {
		t.Error("no error without a program")
	}
	if _, err := Ask(t.Context(), Options{}, "GPU-1"); err == nil {
		t.Error("no error without a command")
	}
}
