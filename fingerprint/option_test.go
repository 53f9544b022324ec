// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"testing"

	"github.com/wcache/wcache/release"
)

// Every field of every known release has an option or a cause.
func TestOptionOf(t *testing.T) {
	for _, r := range release.All() {
		for _, name := range r.Key {
			if OptionOf(name) == "" {
				t.Errorf("%s: nothing is known to change %s", r.Version, name)
			}
		}
	}
	if got := OptionOf("lora_backend"); got != "" {
		t.Errorf("got %q", got)
	}
}
