// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package home

import (
	"os"
	"os/user"
	"strconv"
	"testing"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// Without HOME the user database says where a user's files are.
func TestHomeUnset(t *testing.T) {
	me, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		t.Skipf("%v; TestHomeless of cmd/wcache is about such users", err)
	}
	for home, want := range map[string]string{"": me.HomeDir, "relative": me.HomeDir, "/home/ada": "/home/ada"} {
		env := Env(func(name string) string { return map[string]string{"HOME": home, "USER": "ada"}[name] })
		if got := env("HOME"); got != want || env("USER") != "ada" {
			t.Errorf("HOME=%q: %q, want %q", home, got, want)
		}
	}
}
