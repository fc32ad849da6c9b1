package tui

import "testing"

// Donated replicas serve other work: they are not missing among the ready ones.
func TestDonatedReplicasAreNotMissing(t *testing.T) {
	for view, want := range map[string]string{"1": " 2/3 ", "9": " 4/5 ", "$": " 2/3 "} { // us-3 drains, and us-10 is donated
		deskIn(t, 120, 40, ownMachines(), view).wants("4/5 replicas ready", want)
	}
	d := deskIn(t, 120, 40, ownMachines(), "1")
	d.press("j", "d")
	d.wants("replicas        2 of 2 ready")
	d.press("esc", "j", "d")
	d.wants("replicas        2 of 3 ready, 1 donated")
}
