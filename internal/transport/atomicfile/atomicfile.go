package atomicfile

import (
	"cmp"
	"io"
	"os"
	"path/filepath"
)

// TempSuffix follows the path of a file in the path of its new content while that is written. A
// killed process leaves it; the next Write removes it.
const TempSuffix = ".tmp"

// Write replaces the file at path, or creates it, with what fill writes. Only its owner can read
// and write it. The old file stays until the new one is safe on disk, and after an error of fill
// or of writing. Calls for the same path must not overlap.
func Write(path string, fill func(io.Writer) error) error {
	temp := path + TempSuffix
	_ = os.Remove(temp)
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fill(out)
	if err == nil {
		err = out.Sync()
	}
	err = cmp.Or(err, out.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names of a directory's files safe on disk.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return cmp.Or(dir.Sync(), dir.Close())
}
