package local

import (
	"testing"
)

// One process at a time holds a claim; another can see that it is held.
func TestClaimIsExclusive(t *testing.T) {
	t.Setenv(envHome, t.TempDir())
	home, err := OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	check := func(want bool) {
		t.Helper()
		if held, err := home.IsClaimed("a/lock"); held != want || err != nil {
			t.Errorf("claimed: %v, %v; want %v", held, err, want)
		}
	}
	check(false)
	release, ok, err := home.Claim("a/lock")
	if !ok || err != nil {
		t.Fatalf("first claim: %v, %v", ok, err)
	}
	check(true)
	if _, ok, err := home.Claim("a/lock"); ok || err != nil {
		t.Errorf("second claim: %v, %v", ok, err)
	}
	release()
	check(false)
}
