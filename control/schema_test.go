// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package control_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/control/schematest"
	"github.com/wcache/wcache/fingerprint"
)

func schema(t *testing.T) *schematest.Schema {
	t.Helper()
	text, err := os.ReadFile("status.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := schematest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The schema and the Go type have the same fields, of the same types, and what
// may be left out is not required.
func TestSchemaFields(t *testing.T) {
	compare(t, "$", schema(t), reflect.TypeFor[control.Status]())
}

func compare(t *testing.T, at string, s *schematest.Schema, typ reflect.Type) {
	t.Helper()
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	kind := map[reflect.Kind]string{
		reflect.Struct: "object", reflect.Map: "object", reflect.Slice: "array", reflect.String: "string", reflect.Bool: "boolean",
		reflect.Int: "integer", reflect.Int64: "integer", reflect.Float64: "number",
	}[typ.Kind()]
	switch typ {
	case reflect.TypeFor[time.Time]():
		kind = "string"
	case reflect.TypeFor[fingerprint.Key]():
		return // any object
	}
	if s.Type() != kind && s.Type() != "" { // "" of a const or enum
		t.Errorf("%s is %q in the schema and %v in Go", at, s.Type(), typ)
	}
	switch {
	case kind == "array":
		compare(t, at+"[]", s.Items(), typ.Elem())
		return
	case typ.Kind() != reflect.Struct || kind == "string":
		return
	}
	names, required := s.Properties()
	var fields []string
	for i := range typ.NumField() {
		name, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		fields = append(fields, name)
		property := s.Property(name)
		if property == nil {
			continue // told below
		}
		if may := strings.HasPrefix(options, "omit"); may == required[name] {
			t.Errorf("%s.%s: required is %v in the schema, and Go has %q", at, name, required[name], options)
		}
		compare(t, at+"."+name, property, typ.Field(i).Type)
	}
	slices.Sort(fields)
	if diff := cmp.Diff(fields, names); diff != "" {
		t.Errorf("%s: -Go +schema:\n%s", at, diff)
	}
}

// What the schema is for: it tells a status from what isn't one.
func TestSchemaValidates(t *testing.T) {
	s := schema(t)
	const whole = `{"schema":1,"instance":"0","state":"idle","version":{"client":"v"},"socket":"/s","device":{"kind":""},"problems":[],"bytes":0,` +
		`"counts":{"hits":0,"loads":0,"failed":0,"refused":0,"misses":{"new":1},"loaded_bytes":0,"load_seconds":0.5},"entries":[]}`
	for _, tt := range []struct{ old, with, want string }{
		{"", "", ""},
		{`"schema":1`, `"schema":2`, "2 is not 1"},
		{`"entries":[]`, `"entries":null`, "no array"},
		{`"idle"`, `"asleep"`, "none of"},
		{`"bytes":0,`, ``, `no "bytes"`},
		{`"bytes":0,`, `"bytes":0.5,`, "no integer"},
		{`"bytes":0,`, `"bytes":-1,`, "too small"},
		{`"bytes":0,`, `"bytes":0,"new":1,`, `"new" is not in the schema`},
		{`"new":1`, `"new":"1"`, "no integer"},
		{`"bytes":0,`, `"bytes":0,"since":"2026-11-29T12:31:07+01:00",`, "no time in UTC"},
		{`"entries":[]`, `"entries":[{}]`, `$.entries[0]: no "key"`},
	} {
		err := s.Validate([]byte(strings.Replace(whole, tt.old, tt.with, 1)))
		if tt.want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s as %s: got %v, want %s", tt.old, tt.with, err, tt.want)
		}
	}
	if _, err := schematest.Parse([]byte(`{"items":{"oneOf":[]}}`)); err == nil {
		t.Error("an unknown keyword is passed over")
	}
}
