package plan

import (
	"bytes"
	"errors"
	"os"
	"testing"
)

// golden compares got with testdata/name; the file's diff is reviewed with a change.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	want, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func written() *Problem {
	p := one()
	p.Regions, p.Current, p.LoadTPS = []string{"us", "eu"}, [][][]int{{{2}, {0}}}, [][][]float64{{{4200, 0}, {0, 4200}}}
	p.Capacity = [][]*int{{ptr(9)}, {nil}}
	p.Min, p.Max = [][]*int{{ptr(1), nil}}, [][]*int{{nil, ptr(7)}}
	return p
}

func TestWrite(t *testing.T) {
	var lp, mps bytes.Buffer
	if err := errors.Join(written().WriteLP(&lp), written().WriteMPS(&mps)); err != nil {
		t.Fatal(err)
	}
	golden(t, "small.lp", lp.Bytes())
	golden(t, "small.mps", mps.Bytes())
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteReportsErrors(t *testing.T) {
	if written().WriteLP(broken{}) == nil || written().WriteMPS(broken{}) == nil {
		t.Error("no error for a full disk")
	}
}
