// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"testing"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func mustKey(t testing.TB, fields ...Field) Key {
	t.Helper()
	k, err := NewKey(fields)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// with changes the values of some fields; fields that the key lacks are added at the
// end.
func with(t testing.TB, k Key, changed ...Field) Key {
	t.Helper()
	fields := k.Fields()
	for _, c := range changed {
		if i, ok := k.at[c.Name]; ok {
			fields[i] = c
		} else {
			fields = append(fields, c)
		}
	}
	return mustKey(t, fields...)
}
