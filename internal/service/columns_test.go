package service

import (
	"maps"
	"testing"
)

func TestColumns(t *testing.T) {
	got, err := Columns([]string{"\ufeffMinute", " model ", "", "a,b", ""})
	if want := map[string]int{"minute": 0, "model": 1, "a,b": 3}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := Columns([]string{"model", "x", "Model "}); err == nil || err.Error() != `duplicate column "model": rename or remove one` {
		t.Errorf("got %v", err)
	}
}
