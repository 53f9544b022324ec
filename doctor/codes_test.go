// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Which codes each fault has. If this fails, a program that acts on a code is told of
// another fault, or of none; the text of a finding may change, its code may not.
func TestCodesOfFaults(t *testing.T) {
	const path = "testdata/faults.txt"
	var got strings.Builder
	for _, f := range faults {
		b := healthy(t)
		f.spoil(t, b)
		var codes []string
		for _, r := range Run(t.Context(), b.Machine) {
			if r.State != OK {
				codes = append(codes, string(r.Code))
			}
		}
		if len(codes) == 0 {
			codes = []string{"none"}
		}
		fmt.Fprintf(&got, "%s: %s\n", f.name, strings.Join(codes, " "))
	}
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s: -want +got:\n%s", path, diff)
	}
}

// The fields of doctor --json. If this fails, a program no longer finds what it reads.
func TestJSON(t *testing.T) {
	for _, tt := range []struct {
		result Result
		want   string
	}{
		{result("lingering", OK, "", "on"), `{"state":"ok","check":"lingering","text":"on"}`},
		{
			result("lingering", Warn, "loginctl enable-linger", "off").as(LingerOff),
			`{"state":"warn","check":"lingering","code":"linger-off","text":"off","mend":"loginctl enable-linger"}`,
		},
	} {
		got, err := json.Marshal(tt.result)
		if err != nil || string(got) != tt.want {
			t.Errorf("got %s, %v, want %s", got, err, tt.want)
		}
	}
}
