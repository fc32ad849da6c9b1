// Package replay uses recorded calls to clouds in tests. A Transport answers the calls of a provider with the
// recorded responses. Compare sends the recorded requests to an emulated cloud and names the differences of its
// responses from the recorded ones: a recording of a real cloud so judges the emulated one.
package replay
