// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxText bounds the JSON of a key; each byte of a string may take six.
const maxText = 8 << 20

// MarshalJSON writes an object with the fields in order. Tuples become arrays, and a
// float has a point or an exponent, so that types are kept.
func (k Key) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range k.fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSON(b, f.Name)
		b = append(b, ':')
		b = appendJSON(b, f.Value)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads such an object into k.
func (k *Key) UnmarshalJSON(b []byte) error {
	if len(b) > maxText {
		return fmt.Errorf("decode key: %d bytes are over the limit of %d", len(b), maxText)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("decode key: not an object")
	}
	var fields []Field
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("decode key: %w", err)
		}
		name, _ := t.(string) // More and Token let only strings pass here
		v, err := readJSON(d, 0)
		if err != nil {
			return fmt.Errorf("decode key: field %.40q: %w", name, err)
		}
		if fields = append(fields, Field{name, v}); len(fields) > maxFields {
			return fmt.Errorf("decode key: more than %d fields", maxFields)
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("decode key: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("decode key: text after the end")
	}
	made, err := NewKey(fields)
	if err != nil {
		return err
	}
	*k = made
	return nil
}

func readJSON(d *json.Decoder, depth int) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		if strings.ContainsAny(t.String(), ".eE") {
			return t.Float64()
		}
		return t.Int64()
	case json.Delim:
		if t != '[' {
			return nil, fmt.Errorf("an object can't be a value of a key")
		}
		if depth == maxDepth {
			return nil, fmt.Errorf("more than %d arrays in each other", maxDepth)
		}
		list := Tuple{}
		for d.More() {
			v, err := readJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	return t, nil
}

// appendJSON writes a value of a key.
func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return appendFloat(b, v)
	case string:
		return appendString(b, v)
	case Tuple:
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, x)
		}
		return append(b, ']')
	}
	return append(b, "null"...)
}
