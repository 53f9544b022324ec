// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package schematest holds the JSON of commands against its schema, for tests.
package schematest

import (
	"bytes"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Read compiles the schema in a file. Formats, such as date-time, are checked, too.
func Read(path string) (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(path)
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	return s, nil
}

// Validate reports how a text of JSON differs from a schema.
func Validate(s *jsonschema.Schema, text []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("validate: %w", err)
	}
	return s.Validate(v)
}
