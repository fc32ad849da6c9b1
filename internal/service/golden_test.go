package service

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "update the golden files")

// Each testdata/errors/NAME.yaml is rejected with the text of NAME.want, and no golden file
// contains a secret.
func TestParseErrorsMatchGoldenFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := Parse("service.yaml", data)
			if err == nil || spec != nil {
				t.Fatalf("accepted: %+v", spec)
			}
			got := err.Error() + "\n"
			for _, secret := range []string{"do_not_show", "5551234"} {
				if strings.Contains(got, secret) {
					t.Errorf("the errors show a secret:\n%s", got)
				}
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".want"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
