package service

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzParse: any input either returns errors with a position, or a Spec that survives Marshal and
// Parse unchanged.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/errors/*.yaml", "../../templates/*.yaml", "../../examples/*/service.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no seeds in %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := Parse("service.yaml", data)
		checkErrors(t, string(data), err)
		if err != nil {
			return
		}
		text, err := Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("service.yaml", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(spec, again) {
			t.Fatalf("got  %+v\nwant %+v\nfrom\n%s", again, spec, text)
		}
	})
}
