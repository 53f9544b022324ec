// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// texts keeps each Write, and gives an error like a log that has ended.
type texts []string

func (l *texts) Write(b []byte) (int, error) {
	*l = append(*l, string(b))
	return 0, errors.New("it has ended")
}

// What a child says reaches a log line by line, however it is cut, the last line too,
// and no child ends because of the log.
func TestStderr(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         []string
	}{
		{"nothing", `:`, nil},
		{"lines in pieces", `printf 'panic: ' >&2; printf 'it is\nbro' >&2; printf 'ken\n\nend\n' >&2`, []string{"panic: it is\n", "broken\n", "end\n"}},
		{"no end", `printf 'a\nb' >&2`, []string{"a\n", "b\n"}},
	} {
		var got texts
		_, err := Ask(t.Context(), Options{Command: []string{"/bin/sh", "-c", tt.script + "; echo '{}'", "sh"}, Stderr: &got}, "GPU-1")
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, []string(got)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, diff)
		}
	}
	// Far more than a pipe takes.
	var got texts
	_, err := Ask(t.Context(), Options{Command: []string{"/bin/sh", "-c", `head -c 1000000 /dev/zero | tr '\0' x >&2; echo '{}'`, "sh"}, Stderr: &got}, "GPU-1")
	if err != nil {
		t.Error(err)
	}
	n, longest := 0, 0
	for _, line := range got {
		n += strings.Count(line, "x")
		longest = max(longest, len(line))
	}
	if n != 1_000_000 || longest != maxErrorLine+1 {
		t.Errorf("%d bytes in lines of at most %d", n, longest)
	}
}
