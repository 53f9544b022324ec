// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"slices"
	"time"
)

// sample is repeated measurements of one thing.
type sample []float64

func (s *sample) add(v float64)           { *s = append(*s, v) }
func (s *sample) addTime(d time.Duration) { s.add(float64(d.Nanoseconds()) / 1e6) }

// at is the value below which a share of the sample lies.
func (s sample) at(share float64) float64 {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

func (s sample) median() float64 { return s.at(0.5) }

// spread words the median and the range of a sample.
func (s sample) spread(format, unit string) string {
	return fmt.Sprintf(format+" "+unit+" ("+format+" to "+format+" in %d)", s.median(), slices.Min(s), slices.Max(s), len(s))
}
