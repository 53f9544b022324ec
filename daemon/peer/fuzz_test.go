// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package peer

import (
	"os"
	"strings"
	"testing"
)

// FuzzProcess reads what the kernel says of an engine, of which much is the engine's own
// choice.
func FuzzProcess(f *testing.F) {
	for _, name := range []string{"stat", "status"} {
		b, err := os.ReadFile("/proc/self/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 2000)])
	}
	f.Add([]byte("4711 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 1234 20"))
	f.Add([]byte("Name:\tx\nCapPrm:\t000001ffffffffff\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if start, err := parseStart(text); err != nil && start != 0 {
			t.Errorf("start %d beside an error", start)
		}
		if caps, err := parseCapabilities(string(text)); err == nil && !strings.Contains(string(text), "CapPrm:") {
			t.Errorf("capabilities %x of nothing", caps)
		}
	})
}
