package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
)

// volumePrefix begins the names of the volumes for compiled code.
const volumePrefix = unitPrefix + "compiled-"

// compiledVolume returns the name of the Docker volume for a directory of compiled code. Docker fills an
// empty volume with the files that the image has in that directory, such as precompiled kernels, which a
// directory of the machine would hide (docs.docker.com/engine/storage/volumes, November 2026). Another
// image gets another volume: its kernels differ.
func compiledVolume(image, dir string) string {
	sum := sha256.Sum256([]byte(image + "\n" + dir))
	return volumePrefix + hex.EncodeToString(sum[:6])
}

// volumeArgs returns the arguments of docker that mount the directories of compiled code.
func volumeArgs(u Unit) (args []string) {
	for _, dir := range u.CompileCaches {
		args = append(args, "--volume", compiledVolume(u.Image, dir)+":"+dir)
	}
	return args
}

// removeOldVolumes removes the volumes of compiled code that a unit does not use, such as those of its
// earlier image. A machine runs one engine, whose container must have been removed before.
func (s *System) removeOldVolumes(ctx context.Context, u Unit) error {
	if len(u.CompileCaches) == 0 {
		return nil
	}
	out, err := s.call(ctx, "docker", "volume", "ls", "--quiet", "--filter", "name="+volumePrefix)
	for _, name := range strings.Fields(out) {
		used := slices.ContainsFunc(u.CompileCaches, func(dir string) bool { return name == compiledVolume(u.Image, dir) })
		if strings.HasPrefix(name, volumePrefix) && !used { // Docker's filter matches any part of a name
			_, rmErr := s.call(ctx, "docker", "volume", "rm", name)
			err = errors.Join(err, rmErr)
		}
	}
	return err
}
