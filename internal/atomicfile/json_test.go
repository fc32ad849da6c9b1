package atomicfile

import (
	"errors"
	"testing"
)

// The error of a damaged file names the file and the place of the damage.
func TestDamagedFilesAreDescribed(t *testing.T) {
	for text, want := range map[string]string{
		"":           "f.json is damaged: the file is empty",
		"{":          "f.json is damaged: it is not valid JSON from byte 1 of 1",
		`{"n": x}`:   "f.json is damaged: it is not valid JSON from byte 7 of 8",
		`{"n": "a"}`: `f.json is damaged: "n" must not be a JSON string`,
		`[]`:         "f.json is damaged: it must not be a JSON array",
		`{"n": 1}`:   "",
	} {
		var v struct {
			N int `json:"n"`
		}
		err := DecodeJSON("f.json", []byte(text), &v)
		var damaged *DamagedError
		if want == "" && err != nil || want != "" && (!errors.As(err, &damaged) || err.Error() != want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
