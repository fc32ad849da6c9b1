package provision

// Finding is one thing that was looked at before anything is made, and whether it
// is as it must be.
type Finding struct {
	// Where is the cloud or the region: gcp, gcp/us-central1.
	Where string `json:"where"`
	OK    bool   `json:"ok"`
	// What was looked at and what was found, in one sentence.
	What string `json:"what"`
	// Hint is what to do next; empty where nothing has to be done.
	Hint string `json:"hint,omitempty"`
}
