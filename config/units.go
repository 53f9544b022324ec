// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is an amount of memory. In a file it is text with a unit that is a power of
// 1024, such as "24GiB", or "0".
type Bytes int64

// UnmarshalText reads an amount.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	number := strings.TrimRight(s, "KMGTiB ")
	unit := strings.TrimSpace(s[len(number):])
	shift, ok := map[string]uint{"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[unit]
	if !ok || unit == "" && number != "0" {
		//diag config VALUE
		// The unit is missing or is not one of the list. Write a number and a unit, such as
		// `24GiB`.
		return fmt.Errorf("%q is not an amount such as \"24GiB\" (B, KiB, MiB, GiB, TiB)", s)
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n >= 0) || n*float64(int64(1)<<shift) > math.MaxInt64/2 {
		//diag config VALUE
		// The text before the unit is not a number, is negative, or is more than any memory. Write
		// a number and a unit, such as `24GiB`.
		return fmt.Errorf("%q is not an amount such as \"24GiB\"", s)
	}
	*b = Bytes(n * float64(int64(1)<<shift))
	return nil
}

// Duration is a time span. In a file it is text in Go's form, such as "10m".
type Duration time.Duration

// UnmarshalText reads a time span that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		//diag config VALUE
		// The unit is missing or unknown, or the time is negative. Write a number and a unit, such
		// as `90s` or `10m`.
		return fmt.Errorf("%q is not a time span such as \"90s\" or \"10m\"", text)
	}
	*d = Duration(v)
	return nil
}
