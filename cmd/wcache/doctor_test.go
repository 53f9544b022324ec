// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/doctor"
)

func TestPrintChecks(t *testing.T) {
	list := []doctor.Result{
		{State: doctor.OK, Check: "GPU", Text: "0, GPU-3f8a"},
		{State: doctor.Warn, Check: "lingering", Text: "off", Mend: "loginctl enable-linger"},
		{State: doctor.Fail, Check: "device nodes", Text: "/dev/nvidia-uvm is missing", Mend: "nvidia-modprobe -u -c 0"},
	}
	for _, tt := range []struct {
		json bool
		want string
	}{
		{false, `
ok     GPU            0, GPU-3f8a
warn   lingering      off   -> loginctl enable-linger
fail   device nodes   /dev/nvidia-uvm is missing   -> nvidia-modprobe -u -c 0
1 failed, 1 warning
`},
		{true, `
{
  "checks": [
    {
      "state": "ok",
      "check": "GPU",
      "text": "0, GPU-3f8a"
    },
    {
      "state": "warn",
      "check": "lingering",
      "text": "off",
      "mend": "loginctl enable-linger"
    },
    {
      "state": "fail",
      "check": "device nodes",
      "text": "/dev/nvidia-uvm is missing",
      "mend": "nvidia-modprobe -u -c 0"
    }
  ],
  "failed": 1,
  "schema": 1,
  "warnings": 1
}
`},
	} {
		var out bytes.Buffer
		a := app{out: &out, env: noEnv, json: tt.json}
		if err := a.printChecks(list); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want[1:], out.String()); diff != "" {
			t.Errorf("JSON %v: -want +got:\n%s", tt.json, diff)
		}
	}
}

// On a terminal only the states have colours, and the columns stay where they are.
func TestPrintChecksInColour(t *testing.T) {
	master, slave := terminalPair(t)
	a := app{out: slave, env: noEnv}
	if err := a.printChecks([]doctor.Result{{State: doctor.Fail, Check: "GPU", Text: "none"}, {State: doctor.OK, Check: "MPS", Text: "not in use"}}); err != nil {
		t.Fatal(err)
	}
	const want = "\x1b[31mfail\x1b[0m   GPU   none\r\n\x1b[32mok  \x1b[0m   MPS   not in use\r\n1 failed, 0 warnings\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(master, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
