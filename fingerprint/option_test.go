// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import "testing"

// Every field of every release that is known can be changed by something.
func TestOptionOf(t *testing.T) {
	for series, names := range keyFields {
		for _, name := range names {
			if OptionOf(name) == "" {
				t.Errorf("%s: nothing is known to change %s", series, name)
			}
		}
	}
	if got := OptionOf("lora_backend"); got != "" {
		t.Errorf("got %q", got)
	}
}
