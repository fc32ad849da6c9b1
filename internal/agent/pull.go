package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"time"

	"skyserve/internal/telemetry"
)

// noSpaceMessage is Docker's error for a full disk.
const noSpaceMessage = "no space left on device"

// pull pulls an image unless it exists. If the disk is full, it removes unused images, such as that
// of an earlier deployment, and retries once. begun is called before the pull, progress with the bytes of the layers that
// have been downloaded, if the registry reports their sizes.
func (s *System) pull(ctx context.Context, image string, begun func(), progress func(telemetry.ByteCount)) error {
	if _, err := s.call(ctx, "docker", "image", "inspect", "--format", "{{.Id}}", image); err == nil {
		return nil
	}
	begun()
	layers := s.readLayers(ctx, image)
	line := func(line string) {
		if b, changed := layers.add(line); changed {
			progress(b)
		}
	}
	err := s.callLines(ctx, line, "docker", "pull", image)
	if err == nil || !strings.Contains(err.Error(), noSpaceMessage) {
		return err
	}
	if _, pruneErr := s.call(ctx, "docker", "image", "prune", "--all", "--force"); pruneErr != nil {
		return errors.Join(err, pruneErr)
	}
	return s.callLines(ctx, line, "docker", "pull", image)
}

// maxManifestTime limits how long a pull waits for the sizes of its layers, which are only displayed.
const maxManifestTime = 10 * time.Second

// imageManifest is the part of an image's manifest, or of an index of manifests by platform, that has sizes.
type imageManifest struct {
	Layers []struct {
		Digest string `json:"digest"`
		Size   int64  `json:"size"`
	} `json:"layers"`
	Manifests []struct {
		Digest   string `json:"digest"`
		Platform struct {
			Architecture string `json:"architecture"`
			OS           string `json:"os"`
		} `json:"platform"`
	} `json:"manifests"`
}

// readLayers reads the sizes of an image's layers from its registry; no layers if that fails.
func (s *System) readLayers(ctx context.Context, image string) *layerProgress {
	ctx, cancel := context.WithTimeout(ctx, maxManifestTime)
	defer cancel()
	m := s.readManifest(ctx, image)
	for _, of := range m.Manifests {
		if of.Platform.OS == "linux" && of.Platform.Architecture == runtime.GOARCH {
			m = s.readManifest(ctx, repositoryOf(image)+"@"+of.Digest)
			break
		}
	}
	p := &layerProgress{left: map[string]int64{}}
	for _, l := range m.Layers {
		if id := layerID(l.Digest); id != "" && l.Size > 0 && p.left[id] == 0 {
			p.left[id] = l.Size
			p.bytes.Total += l.Size
		}
	}
	return p
}

// readManifest reads a manifest; an empty one if that fails.
func (s *System) readManifest(ctx context.Context, image string) (m imageManifest) {
	out, err := s.call(ctx, "docker", "manifest", "inspect", image)
	if err != nil || json.Unmarshal([]byte(out), &m) != nil {
		return imageManifest{}
	}
	return m
}

// repositoryOf returns an image without its tag and digest.
func repositoryOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if at := strings.LastIndexByte(image, ':'); at > strings.LastIndexByte(image, '/') {
		image = image[:at]
	}
	return image
}

// layerID returns the id with which Docker names a layer while it pulls: the first 12 digits of its digest.
func layerID(digest string) string {
	_, digits, _ := strings.Cut(digest, "sha256:")
	if len(digits) < 12 {
		return ""
	}
	return digits[:12]
}

// layerProgress counts the bytes of the layers that `docker pull` reports as downloaded.
type layerProgress struct {
	left  map[string]int64 // the sizes of the layers that are not downloaded yet, by id
	bytes telemetry.ByteCount
}

// layerStates are the states of `docker pull` in which a layer has been downloaded, as Docker prints them without
// a terminal (github.com/docker/docker, pkg/jsonmessage and distribution/xfer, 2026).
var layerStates = []string{"Download complete", "Pull complete", "Already exists"}

// add reads a line of `docker pull`, such as "3e0e8b5a1c2d: Download complete". changed is true if another layer has
// been downloaded.
func (p *layerProgress) add(line string) (b telemetry.ByteCount, changed bool) {
	id, state, _ := strings.Cut(strings.TrimSpace(line), ": ")
	for _, done := range layerStates {
		if size := p.left[id]; state == done && size > 0 {
			delete(p.left, id)
			p.bytes.Done += size
			return p.bytes, true
		}
	}
	return p.bytes, false
}

// lineWriter calls a function with each line that is written to it.
type lineWriter struct {
	line func(string)
	rest []byte
}

// Write implements io.Writer.
func (w *lineWriter) Write(text []byte) (int, error) {
	w.rest = append(w.rest, text...)
	for {
		end := bytes.IndexByte(w.rest, '\n')
		if end < 0 {
			return len(text), nil
		}
		w.line(string(w.rest[:end]))
		w.rest = w.rest[end+1:]
	}
}
