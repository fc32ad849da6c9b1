package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestOnlyYesGoesOn(t *testing.T) {
	for answer, goesOn := range map[string]bool{"yes\n": true, " yes \n": true, "yes": true, "y\n": false, "no\n": false, "\n": false, "": false, "YES\n": false} {
		var talk bytes.Buffer
		err := answered(strings.NewReader(answer), &talk, "Raise the cost?")
		if (err == nil) != goesOn {
			t.Errorf("%q: got %v", answer, err)
		}
		if talk.String() != "Raise the cost? Only 'yes' goes on: " {
			t.Errorf("asked %q", talk.String())
		}
	}
}

func TestNobodyIsAskedWithoutATerminal(t *testing.T) {
	var talk bytes.Buffer
	err := confirm(strings.NewReader("yes\n"), &talk, "Raise the cost?")
	var ee *exitError
	if !errors.As(err, &ee) || ee.code != exitUsage || !strings.Contains(ee.hint, "--yes") || talk.Len() > 0 {
		t.Errorf("got %v, said %q", err, talk.String())
	}
}
