//! overlayfs takes a mount for its upper and work directory: copies up, whiteouts, opaque and redirected directories,
//! renames, hard links, file handles.
//!
//! The cases are our own, after the descriptions of xfstests' group overlay. Each is a script with its expectations, and
//! runs on tmpfs, which shows that the expectations are right, and on mounts.

use nvfold_tests::mount::{Mount, in_own_namespace};
use nvfold_tests::random::Seed;
use nvfold_tests::requires;
use nvfold_tests::run;
use nvfold_tests::scratch::Scratch;
use std::path::Path;

const NOISE_BYTES: usize = 1_000_000;

/// What the scripts share. `$top` is the directory of the upper layer `$up` and of the work directory, `$lowest` that of the
/// lower layer `$low`; `$all` is the overlay.
const WORDS: &str = r#"
low=$lowest/low all=$PWD/all up=$top/up
mkdir -p "$low" all "$up" "$top/work"
overlay() { mount -t overlay -o "lowerdir=$low,upperdir=$up,workdir=$top/work,$options" overlay "$all"; }
# What is stored is found by a second mount too.
again() { umount "$all"; overlay; }
fail() { echo "line ${BASH_LINENO[1]:-${BASH_LINENO[0]}}: $1"; exit 1; }
is() { [ "$1" = "$2" ] || fail "found '$1', expected '$2'"; }
# The names in a directory, in order.
names() { is "$(ls -A "$1" | tr '\n' ' ')" "$2"; }
is_whiteout() { is "$(stat -c '%F %t:%T %a' "$1")" "character special file 0:0 0"; }
is_absent() { [ ! -e "$1" ] && [ ! -L "$1" ] || fail "$1 is there"; }
attribute() { getfattr --absolute-names --only-values -h -n "trusted.overlay.$2" "$1" 2>/dev/null || echo none; }
refused() { if "$@" 2>refusal; then fail "$* succeeded"; fi; }
"#;

/// A lower layer with files, links and directories.
const LOWER: &str = r#"
mkdir -p $low/dir/sub $low/empty
echo one > $low/one; ln $low/one $low/also_one; echo two > $low/dir/two; echo deep > $low/dir/sub/deep
ln -s one $low/link; mkfifo $low/fifo; chmod 640 $low/one; touch -d 2001-02-03 $low/one
"#;

/// Returns a script that makes a lower layer in `lowest`, mounts an overlay whose upper layer is in `top`, and runs a case.
fn script(lowest: &Path, top: &Path, make_lower: &str, options: &str, case: &str) -> String {
    let (lowest, top) = (lowest.display(), top.display());
    format!("lowest={lowest}\ntop={top}\noptions={options}\n{WORDS}\n{make_lower}\noverlay\n{case}\numount $all")
}

/// Makes a file `noise`, which nothing is shared with.
fn make_noise(dir: &Path, bytes: usize) {
    let mut noise = vec![0; bytes];
    Seed::new("overlay").generator().fill(&mut noise);
    std::fs::write(dir.join("noise"), noise).expect("write");
}

/// Runs a case with the upper layer on a mount.
#[track_caller]
fn on_mount(mount: &Mount, lowest: &Path, make_lower: &str, options: &str, case: &str) {
    let script = script(lowest, mount.path(), make_lower, options, case);
    let script = format!("{script}\nis \"$(findmnt -no FSTYPE -T $up)\" fuse.nvfold");
    run::ok(&mut in_own_namespace(mount.scratch(), &script));
}

/// Runs a case with both layers on tmpfs, with the upper one on a mount, and with both on one mount; fsck then finds the
/// device clean.
#[track_caller]
fn on_each(options: &str, case: &str) {
    let tmpfs = Scratch::new();
    make_noise(tmpfs.path(), NOISE_BYTES);
    run::ok(&mut in_own_namespace(tmpfs.path(), &script(tmpfs.path(), &tmpfs.join("top"), LOWER, options, case)));
    for is_apart in [true, false] {
        let mut mount = Mount::fresh(64, "inline");
        make_noise(mount.scratch(), NOISE_BYTES);
        let lowest = if is_apart { mount.scratch() } else { mount.path() };
        on_mount(&mount, lowest, LOWER, options, case);
        mount.check();
    }
}

#[test]
fn a_file_of_the_lower_layer_is_copied_up_whole_when_it_changes() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "",
        r#"
        before=$(stat -c '%a %Y %h' $low/one)
        cat noise noise noise > $low/large; cp $low/large large
        truncate -s 40M $low/sparse; printf data | dd of=$low/sparse bs=1 seek=33000000 conv=notrunc status=none
        names $up ""
        chmod 600 $all/large; cmp large $all/large; cmp large $up/large
        printf x | dd of=$all/large bs=1 seek=1500000 conv=notrunc status=none
        printf x | dd of=large bs=1 seek=1500000 conv=notrunc status=none
        cmp large $all/large; again; cmp large $all/large
        chmod 600 $all/sparse; cmp $low/sparse $all/sparse
        [ $(stat -c %b $up/sparse) -lt 20000 ] || fail "the holes are filled"
        # Attributes alone: the times and the content are the old ones.
        chown 7:8 $all/one; is "$(stat -c '%a %Y %u:%g' $up/one)" "640 $(stat -c %Y $low/one) 7:8"
        is "$(cat $up/one)" one; is "$(stat -c '%a %Y %h' $low/one)" "$before"
        setfattr -n user.name -v value $all/dir/two; is "$(getfattr --absolute-names --only-values -n user.name $up/dir/two)" value
        touch -h $all/link; is "$(readlink $up/link)" one; chmod 600 $all/fifo; [ -p $up/fifo ] || fail "no fifo"
        "#,
    );
}

#[test]
fn a_removed_name_of_the_lower_layer_becomes_a_whiteout() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "",
        r#"
        rm $all/one $all/fifo $all/dir/sub/deep; rmdir $all/empty $all/dir/sub
        for name in one fifo empty dir/sub; do is_absent $all/$name; is_whiteout $up/$name; done
        names $all "also_one dir link "; again; names $all "also_one dir link "; names $all/dir "two "
        # A name that comes again takes the place of its whiteout.
        echo new > $all/one; mkdir $all/empty; ln -s x $all/fifo; is "$(cat $up/one)" new
        is "$(stat -c %F $up/empty),$(readlink $up/fifo)" "directory,x"
        # Nothing is left of a tree that is removed whole, and the directory can be removed with the whiteouts in it.
        rm -rf $all/*; names $all ""; again; names $all ""
        is_whiteout $up/dir
        "#,
    );
}

#[test]
fn a_directory_in_the_place_of_a_lower_one_is_opaque() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "",
        r#"
        rm -r $all/dir; mkdir $all/dir; names $all/dir ""
        is "$(attribute $up/dir opaque)" y; again; names $all/dir ""
        echo new > $all/dir/new; again; names $all/dir "new "; is "$(attribute $up/empty opaque)" none
        # Overlay's own attributes are not those of its files.
        is "$(getfattr --absolute-names -d -m trusted.overlay $all/dir)" ""
        # A directory that is not opaque shows what is below it.
        echo more > $all/empty/more; echo below > $low/empty/below; again; names $all/empty "below more "
        "#,
    );
}

#[test]
fn renames_of_lower_files_leave_whiteouts() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "",
        r#"
        mv $all/one $all/moved; is_whiteout $up/one; is "$(cat $up/moved)" one
        mv $all/dir/two $all/empty/two; is_whiteout $up/dir/two; names $all/empty "two "
        mv $all/moved $all/dir/sub/deep; is "$(cat $all/dir/sub/deep)" one; is_absent $up/moved
        # A file over another one, and back under the name of a whiteout.
        mv $all/empty/two $all/one; is "$(cat $all/one)" two; again; is "$(cat $all/one)" two
        names $all/empty ""; names $all/dir "sub "; names $all "also_one dir empty fifo link one "
        # A new directory takes the place of a whiteout, and a rename within the upper layer leaves none.
        mkdir $all/new; touch $all/new/file; mv $all/new $all/newer; is_absent $up/new
        rm -r $all/dir; mv $all/newer $all/dir; names $all/dir "file "; again; names $all/dir "file "
        "#,
    );
}

#[test]
fn a_lower_directory_is_renamed_by_a_redirection() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "redirect_dir=on",
        r#"
        mv -T $all/dir $all/moved; is "$(attribute $up/moved redirect)" dir; is_whiteout $up/dir
        is "$(cat $all/moved/two $all/moved/sub/deep)" "$(printf 'two\ndeep')"
        mv $all/moved/sub $all/empty/sub; is "$(attribute $up/empty/sub redirect)" /dir/sub
        echo changed > $all/moved/two; again
        is "$(cat $all/moved/two $all/empty/sub/deep)" "$(printf 'changed\ndeep')"
        names $all "also_one empty fifo link moved one "; names $all/moved "two "
        # Two directories are exchanged.
        python3 -c '
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2) == 0, ctypes.get_errno()
' $all/moved $all/empty
        names $all/moved "sub "; names $all/empty "two "; again; names $all/moved "sub "; names $all/empty "two "
        rm -r $all/moved $all/empty; again; names $all "also_one fifo link one "
        "#,
    );
}

#[test]
fn a_lower_directory_is_copied_by_rename_without_redirections() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"), tool("python3"));
    on_each(
        "redirect_dir=off",
        r#"
        refused python3 -c 'import os, sys; os.rename(sys.argv[1], sys.argv[2])' $all/dir $all/moved
        grep -q EXDEV refusal || grep -q cross-device refusal || fail "$(cat refusal)"
        mv $all/dir $all/moved; is_whiteout $up/dir; is "$(cat $all/moved/sub/deep)" deep; again
        names $all "also_one empty fifo link moved one "
        "#,
    );
}

#[test]
fn lower_hard_links_stay_links_with_an_index() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "index=on,nfs_export=on",
        r#"
        ino=$(stat -c %i $all/one)
        echo more >> $all/one; is "$(cat $all/also_one)" "$(printf 'one\nmore')"
        is "$(stat -c '%i %h' $all/one)" "$ino 2"; is "$(stat -c '%i %h' $all/also_one)" "$ino 2"
        ln $all/also_one $all/dir/third; is "$(stat -c %h $all/one)" 3; again
        is "$(stat -c %i $all/dir/third)" "$(stat -c %i $all/one)"; is "$(stat -c %h $all/one)" 3
        rm $all/one; is "$(stat -c %h $all/also_one)" 2; rm $all/also_one; again
        is "$(cat $all/dir/third)" "$(printf 'one\nmore')"; is "$(stat -c %h $all/dir/third)" 1
        [ $(ls $top/work/index | wc -l) -gt 0 ] || fail "no index"
        rm $all/dir/third; again; names $all "dir empty fifo link "
        "#,
    );
}

#[test]
fn a_change_of_attributes_copies_no_data_with_metacopy() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "metacopy=on,redirect_dir=on",
        r#"
        cp noise $low/large; again
        chmod 600 $all/large; is "$(stat -c %b $up/large)" 0; is "$(stat -c %s $up/large)" 1000000
        cmp $low/large $all/large; mv $all/large $all/moved; again; cmp $low/large $all/moved
        is "$(stat -c '%b %a' $up/moved)" "0 600"
        cp $low/large expected; echo end >> expected; echo end >> $all/moved
        cmp expected $all/moved; cmp expected $up/moved; again; cmp expected $all/moved
        "#,
    );
}

#[test]
fn nameless_files_and_their_links_work_on_an_overlay() {
    requires!(root, fuse, overlay, tool("unshare"), tool("python3"));
    on_each(
        "",
        r#"
        rm $all/one
        python3 - $all <<'END'
import ctypes, os, sys
os.chdir(sys.argv[1])
file = os.open('dir', os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(file, b'content')
assert os.fstat(file).st_nlink == 0
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
def link(name):
    done = libc.linkat(AT_FDCWD, b'/proc/self/fd/%d' % file, AT_FDCWD, name, AT_SYMLINK_FOLLOW)
    return 0 if done == 0 else ctypes.get_errno()
assert link(b'one') == 0 and link(b'dir/linked') == 0 and link(b'dir/two') == 17
assert os.fstat(file).st_nlink == 2 and open('one').read() == open('dir/linked').read() == 'content'
# A file that is open stays what it is when its name goes, and when it is copied up.
reader = open('also_one')
os.chmod('also_one', 0o600)
os.unlink('also_one')
assert reader.read() == 'one\n'
END
        again; is "$(cat $up/one) $(stat -c %a $all/dir/linked)" "content 640"
        names $all "dir empty fifo link one "
        "#,
    );
}

#[test]
fn modes_and_acls_decide_which_users_change_an_overlay() {
    requires!(root, fuse, overlay, tool("unshare"), tool("setpriv"), tool("setfacl"));
    on_each(
        "",
        r#"
        chmod 755 .; as() { setpriv --reuid=$1 --regid=$1 --clear-groups "${@:2}"; }
        refused as 1001 sh -c "echo x > $all/one"; refused as 1001 rm $all/one; refused as 1001 mv $all/one $all/x
        chmod 777 $all; as 1001 rm $all/one; is_whiteout $up/one
        as 1001 mv $all/also_one $all/moved; is_whiteout $up/also_one; is "$(stat -c %u $all/moved)" 0
        chmod 1777 $all; refused as 1001 rm $all/moved; as 1001 sh -c "echo mine > $all/mine"
        is "$(stat -c '%u %g' $all/mine)" "1001 1001"
        setfacl -d -m u:1002:rwx $all/dir; setfacl -m u:1002:rwx $all/dir
        as 1002 sh -c "echo new > $all/dir/new; rm $all/dir/two"; is_whiteout $up/dir/two
        getfacl -cp $all/dir/new | grep -q user:1002:rw || fail "the ACL is not inherited"
        # The directory's ACL is none of the whiteout's.
        is "$(getfacl -cp $up/dir/two | tr '\n' ' ')" "user::--- group::--- other::---  "
        "#,
    );
}

#[test]
fn whiteouts_and_opaque_directories_count_in_lower_layers_too() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "",
        r#"
        umount $all; bottom=$low
        mkdir $lowest/middle $lowest/other_work
        mount -t overlay -o lowerdir=$low,upperdir=$lowest/middle,workdir=$lowest/other_work overlay $all
        rm $all/one; rm -r $all/dir; mkdir $all/dir; echo x > $all/dir/middle; echo x > $all/empty/middle; umount $all
        low=$lowest/middle:$bottom; overlay
        names $all "also_one dir empty fifo link "; names $all/dir "middle "; names $all/empty "middle "
        # A copy of the directory stays opaque, and a name comes again over a whiteout of the middle layer.
        touch $all/dir/new; echo new > $all/one; rm $all/also_one; again
        names $all/dir "middle new "; is "$(cat $all/one)" new; is_whiteout $up/also_one
        rm -r $all/dir $all/empty; again; names $all "fifo link one "
        # An overlay is the lower layer of another one.
        mkdir outer $top/outer $top/outer_work
        mount -t overlay -o lowerdir=$all,upperdir=$top/outer,workdir=$top/outer_work overlay outer
        echo more >> outer/one; rm outer/link; mkdir outer/dir; names outer "dir fifo one "
        is "$(cat outer/one)" "$(printf 'new\nmore')"; is "$(cat $all/one)" new
        umount outer; is_whiteout $top/outer/link
        "#,
    );
}

#[test]
fn open_files_and_running_programs_of_the_lower_layer_are_copied_up() {
    requires!(root, fuse, overlay, tool("unshare"), tool("python3"));
    on_each(
        "",
        r#"
        cp $(command -v cat) $low/program; again
        coproc $all/program; echo runs >&${COPROC[1]}; read -r line <&${COPROC[0]}; is "$line" runs
        refused sh -c "echo x >> $all/program"; grep -q 'Text file busy' refusal || fail "$(cat refusal)"
        chmod 700 $all/program; echo still >&${COPROC[1]}; read -r line <&${COPROC[0]}; is "$line" still
        eval "exec ${COPROC[1]}>&-"; wait $COPROC_PID; cmp $low/program $up/program
        python3 - $all <<'END'
import mmap, os, sys
os.chdir(sys.argv[1])
reader = os.open('dir/two', os.O_RDONLY)
mapped = mmap.mmap(reader, 0, prot=mmap.PROT_READ)
assert mapped[:] == b'two\n'
with open('dir/two', 'r+') as writer:
    writer.write('TWO\nand more')
assert os.pread(reader, 100, 0) == b'TWO\nand more'
assert mapped[:] == b'two\n', 'a mapping stays that of the lower file'
directory = os.open('dir', os.O_RDONLY)
os.fsync(directory)
written = os.open('dir/two', os.O_RDWR)
shared = mmap.mmap(written, 0)
shared[0:3] = b'3wo'
shared.flush()
os.fsync(written)
assert os.pread(reader, 3, 0) == b'3wo'
END
        again; is "$(cat $up/dir/two)" "$(printf '3wo\nand more')"; is "$(cat $low/dir/two)" two
        "#,
    );
}

#[test]
fn privileges_and_acls_are_copied_up_and_follow_their_rules() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"), tool("setfacl"));
    on_each(
        "",
        r#"
        capability=0x0100000200040000000000000000000000000000
        setfattr -n security.capability -v $capability $low/dir/two
        # A default ACL of the work directory is not that of what is made there.
        setfacl -d -m u:1005:rwx $top/work $top/work/work; setfacl -m u:1006:r $low/one; again
        hex() { getfattr --absolute-names --only-values -n security.capability $1 | od -An -tx1 | tr -d ' \n'; }
        chmod 755 $all/dir/two; is "$(hex $up/dir/two)" ${capability#0x}
        is "$(getfacl -cp $up/dir/two | grep -c 1005)" 0
        chown 3:4 $all/one; getfacl -cp $up/one | grep -q user:1006:r-- || fail "the ACL is lost"
        echo x >> $all/dir/two; refused getfattr -n security.capability $up/dir/two
        # The group of a set-group-id directory, copied up or new, is inherited.
        chgrp 2001 $all/empty; chmod 2775 $all/empty; echo x > $all/empty/new; mkdir $all/empty/sub
        is "$(stat -c '%g %a' $all/empty/new $all/empty/sub | tr '\n' ' ')" "2001 644 2001 2755 "
        # Set-user-id and set-group-id are copied up, also of another owner, and go when the owner changes.
        for id in 0 5; do
            tool=$low/tool$id; echo x > $tool; chown $id:7 $tool; chmod 6755 $tool; cp -a $tool $low/given$id; again
            touch $all/tool$id; is "$(stat -c '%a %u:%g' $up/tool$id)" "6755 $id:7"
            chown 9 $all/tool$id $all/given$id; is "$(stat -c %a $up/tool$id $up/given$id | sort -u)" 755
        done
        # Whiteouts are links of one inode.
        rm $all/fifo $all/also_one $all/dir/sub/deep; is_whiteout $up/dir/sub/deep
        is "$(stat -c %i $up/fifo $up/also_one $up/dir/sub/deep | sort -u | wc -l)" 1
        "#,
    );
}

#[test]
fn an_index_keeps_layers_together_and_what_was_left_in_the_work_directory_is_removed() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "index=on",
        r#"
        echo more >> $all/one
        refused mount -t overlay -o "lowerdir=$low,upperdir=$up,workdir=$top/work,index=on" overlay $all
        grep -q 'busy\|already mounted' refusal || fail "$(cat refusal)"
        umount $all; cp -a $low $lowest/other
        refused mount -t overlay -o "lowerdir=$lowest/other,upperdir=$up,workdir=$top/work,index=on" overlay $all
        grep -q 'Stale file handle' refusal || fail "$(cat refusal)"
        mkdir -p $top/work/work/left; echo x > $top/work/work/file; overlay
        names $top/work/work ""; is "$(cat $all/also_one)" "$(printf 'one\nmore')"
        # Where all is on one file system, numbers stay as they are when files are copied up, and listings have them too.
        if [ "$(stat -c %d $low)" = "$(stat -c %d $up)" ]; then
            numbers() { (cd $all; stat -c '%i %n' * dir/*; ls -iU1 dir) | sort -u >$1; }
            numbers before; chmod 600 $all/dir/two $all/dir/sub; touch -h $all/link; numbers after; cmp before after
            again; numbers after; cmp before after
        fi
        "#,
    );
}

#[test]
fn an_overlay_in_a_user_namespace_keeps_its_marks_in_user_attributes() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    on_each(
        "userxattr",
        r#"
        umount $all; chmod 755 .
        unshare --user --map-root-user --mount bash -euc "
            $(declare -f fail is names); all=$all
            mount -t overlay -o lowerdir=$low,upperdir=$up,workdir=$top/work,userxattr overlay $all
            rm $all/one; rm -r $all/dir; mkdir $all/dir; echo new > $all/dir/new
            names $all/dir 'new '; names $all 'also_one dir empty fifo link '
        "
        is_whiteout $up/one; is "$(getfattr --absolute-names --only-values -n user.overlay.opaque $up/dir)" y
        overlay; names $all "also_one dir empty fifo link "
        "#,
    );
}

#[test]
fn a_container_runs_with_its_root_on_an_overlay() {
    requires!(root, fuse, overlay, tool("unshare"), tool("setpriv"));
    on_each(
        "",
        r#"
        for program in sh cat mv rm mkdir; do
            for file in $(command -v $program) $(ldd $(command -v $program) | grep -o '/[^ ]*'); do
                mkdir -p $low$(dirname $file); cp $file $low$file
            done
        done
        chmod 755 $low $up; again
        unshare --mount --pid --ipc --uts --net --fork --root=$all $(command -v sh) -euc "
            rm -r /dir; mkdir /dir; echo made > /dir/new; mv /one /dir/one; cat /dir/new /dir/one > /also_one
            ( echo \$\$ ) > /pid
        "
        is "$(cat $all/also_one $all/pid)" "$(printf 'made\none\n1')"; is_whiteout $up/one
        # The programs were run and not copied up.
        is_absent $up$(dirname $(command -v cat))
        unshare --user --map-root-user --mount --pid --fork --root=$all $(command -v sh) -euc "
            echo more >> /also_one; rm /pid; mkdir /mine
        "
        is "$(stat -c '%u %F' $all/mine)" "0 directory"; is_absent $all/pid; again; names $all/dir "new one "
        "#,
    );
}

#[test]
fn an_upper_layer_survives_the_end_of_its_server() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    let mut mount = Mount::fresh(64, "inline");
    let changes = r#"
        mv $all/one $all/moved; rm -r $all/dir; mkdir $all/dir; echo new > $all/dir/new; ln $all/dir/new $all/linked
        sync -f $up
    "#;
    on_mount(&mount, mount.scratch(), LOWER, "index=on", changes);
    mount.kill();
    mount.mount();
    let is_kept = r#"
        names $all "also_one dir empty fifo link linked moved "; names $all/dir "new "
        is "$(cat $all/moved $all/linked)" "$(printf 'one\nnew')"; is "$(stat -c %h $all/linked)" 2
        is_whiteout $up/one; is "$(attribute $up/dir opaque)" y
    "#;
    on_mount(&mount, mount.scratch(), "", "index=on", is_kept);
    mount.check();
}

#[test]
fn a_full_upper_layer_gives_enospc_and_loses_nothing() {
    requires!(root, fuse, overlay, tool("unshare"), tool("getfattr"));
    let mut mount = Mount::fresh(32, "inline");
    make_noise(mount.scratch(), 40 << 20);
    let case = r#"
        cp noise $low/large
        refused sh -c "echo x >> $all/large"; grep -q 'No space' refusal || fail "$(cat refusal)"
        cmp $low/large $all/large; is_absent $up/large; names $top/work/work ""
        head -c 9M noise > $all/fits; rm $all/large; is_whiteout $up/large
        mv $all/one $all/moved; is "$(cat $all/moved)" one
    "#;
    on_mount(&mount, mount.scratch(), LOWER, "", case);
    mount.check();
}

/// What overlayfs needs to copy files up is no way to get privileges.
#[test]
fn a_nameless_file_keeps_its_privileges_only_if_its_owner_was_root_or_changes_it() {
    requires!(root, fuse, tool("python3"));
    let mut mount = Mount::fresh(64, "inline");
    let script = r#"
import os, stat
os.chmod('.', 0o777)
def mode_of(maker, owner, name=None):
    os.seteuid(maker)
    file = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o755)
    os.fchmod(file, 0o6755)
    if name:
        os.link(f'/proc/self/fd/{file}', name, src_dir_fd=file, follow_symlinks=True)
    os.seteuid(0)
    os.fchown(file, owner, 7)
    return oct(stat.S_IMODE(os.fstat(file).st_mode))
assert mode_of(1001, 0) == mode_of(1001, 1002) == mode_of(1001, 1001) == '0o755'
assert mode_of(0, 1001) == mode_of(0, 0) == '0o6755'
assert mode_of(0, 1001, 'named') == '0o755'
"#;
    run::ok(std::process::Command::new("python3").args(["-c", script]).current_dir(mount.path()));
    mount.check();
}
